package router_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

// hung makes a pool of two in which a holds the prefix of the request, has got a request of 500 tokens, and gives no sign of life.
// pass lets time go by while both go on reporting what they did, as good as, so that nothing else is suspected.
func hung(t *testing.T) (p *router.Pool, req router.Request, waits *router.Lease, pass func(d time.Duration)) {
	t.Helper()
	p, c, req := warm(t, router.Config{})
	kv := 0.1
	polls := func() {
		kv -= 1e-12
		require.NoError(t, p.Observe("a", telemetry.Snapshot{
			ObservedAt: c.now(), Running: telemetry.V(1), Waiting: telemetry.V(0), WaitingTokens: telemetry.V(0), KVShare: telemetry.V(kv),
		}))
		idle(t, p, c, "b")
	}
	waits = mustReserve(t, p, router.Request{PromptTokens: 500, ExpectedOutputTokens: 1, Exclude: []string{"b"}, ExcludeHard: true})
	c.advance(100 * time.Millisecond)
	polls()
	pass = func(d time.Duration) {
		for range d / (100 * time.Millisecond) {
			c.advance(100 * time.Millisecond)
			polls()
		}
	}
	return p, req, waits, pass
}

// What an engine has not begun long after it should have will not begin soon.
func TestSilence(t *testing.T) {
	p, req, waits, pass := hung(t)
	d := scored(t, p, req)
	require.Equal(t, "a", d.Endpoint)
	require.Zero(t, candidate(t, d, "a").Silence)
	pass(500 * time.Millisecond)
	require.Zero(t, candidate(t, scored(t, p, req), "a").Silence, "500 tokens take as long, and 100 ms mean nothing")
	queue := candidate(t, scored(t, p, req), "a").Terms.Queue
	pass(time.Second)
	d = scored(t, p, req)
	a := candidate(t, d, "a")
	require.InDelta(t, 1600-500-100, a.Silence, 1e-9)
	require.InDelta(t, queue+1000, a.Terms.Queue, 1e-6)
	require.Equal(t, "b", d.Endpoint)
	require.Contains(t, d.Explain(), "silent for 1000.0 ms longer than usual")
	stats := p.Stats().Endpoints
	require.Equal(t, 1600*time.Millisecond, stats[0].Silence)
	require.Zero(t, stats[1].Silence, "nothing waits there")

	waits.FirstToken()
	require.Equal(t, "a", scored(t, p, req).Endpoint)
	require.Zero(t, p.Stats().Endpoints[0].Silence)
	pass(time.Minute)
	require.Zero(t, candidate(t, scored(t, p, req), "a").Silence, "nobody waits for a first token")
}

// Whatever comes from an endpoint shows that it lives; what does not come from it shows nothing.
func TestSignsOfLife(t *testing.T) {
	for name, x := range map[string]struct {
		sign  func(other *router.Lease)
		lives bool
	}{
		"first token of another": {func(other *router.Lease) { other.FirstToken() }, true},
		"tokens of another":      {func(other *router.Lease) { other.Progress(3) }, true},
		"end of another":         {func(other *router.Lease) { other.Done(router.Usage{}) }, true},
		"refusal of another":     {func(other *router.Lease) { other.Refuse(nil) }, true},
		"headers of another":     {func(other *router.Lease) { other.Started() }, false},
		"cancelling another":     {func(other *router.Lease) { other.Cancel() }, false},
		"failure of another":     {func(other *router.Lease) { other.Fail(nil) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, _, pass := hung(t)
			other := mustReserve(t, p, router.Request{PromptTokens: 100, Exclude: []string{"b"}, ExcludeHard: true})
			pass(2 * time.Second)
			require.Equal(t, 2100*time.Millisecond, p.Stats().Endpoints[0].Silence, "since the first of both was sent")
			x.sign(other)
			if x.lives {
				require.Zero(t, p.Stats().Endpoints[0].Silence)
			} else {
				require.Equal(t, 2100*time.Millisecond, p.Stats().Endpoints[0].Silence)
			}
		})
	}
}

// Memory that is taken shows that the engine lived at some time after the report before, not how long after. Requests come and go
// without it.
func TestMemoryThatIsTakenIsASignOfLife(t *testing.T) {
	p, c, _ := warm(t, router.Config{})
	silence := func() time.Duration { return p.Stats().Endpoints[0].Silence }
	mustReserve(t, p, router.Request{PromptTokens: 500, Exclude: []string{"b"}, ExcludeHard: true})
	c.advance(3 * time.Second)
	report(t, p, c, "a", 1, 700, 0.1)
	require.Equal(t, 3*time.Second, silence(), "the report before was from before the request")
	c.advance(2 * time.Second)
	report(t, p, c, "a", 2, 900, 0.1)
	require.Equal(t, 5*time.Second, silence(), "another request has come")
	c.advance(time.Second)
	report(t, p, c, "a", 1, 700, 0.05)
	require.Equal(t, 6*time.Second, silence(), "and given up")
	c.advance(time.Second)
	report(t, p, c, "a", 1, 700, 0.06)
	require.Equal(t, time.Second, silence())
	c.advance(time.Second)
	require.NoError(t, p.Observe("a", telemetry.Snapshot{ObservedAt: c.now(), Running: telemetry.V(1), Waiting: telemetry.V(0)}))
	require.Equal(t, 2*time.Second, silence(), "not known")
}

// A client that gives up has seen no sign of life: the silence is remembered for as long as it lasted, and goes on with the next.
func TestAHangOutlivesItsVictims(t *testing.T) {
	p, req, waits, pass := hung(t)
	silence := func() time.Duration { return p.Stats().Endpoints[0].Silence }
	pass(2 * time.Second)
	waits.Cancel()
	require.Equal(t, 2100*time.Millisecond, silence())
	require.Equal(t, "b", scored(t, p, req).Endpoint)
	pass(time.Second)
	require.Equal(t, 1100*time.Millisecond, silence())
	pass(1100 * time.Millisecond)
	require.Zero(t, silence())
	d := scored(t, p, req)
	require.Equal(t, "a", d.Endpoint, "one finds out")
	probe := mustReserve(t, p, req)
	require.Equal(t, "a", probe.Endpoint().ID)
	require.Equal(t, 4200*time.Millisecond, silence(), "it goes on")
	require.Equal(t, "b", scored(t, p, req).Endpoint, "no second one meanwhile")
	pass(2 * time.Second)
	probe.Cancel()
	pass(6 * time.Second)
	require.Equal(t, 200*time.Millisecond, silence(), "6.2 s are remembered for 6.2 s")
	pass(time.Hour)
	probe = mustReserve(t, p, router.Request{PromptTokens: 10, Exclude: []string{"b"}, ExcludeHard: true})
	require.Equal(t, 12400*time.Millisecond, silence(), "not the hour in which nobody asked")
	probe.FirstToken()
	require.Zero(t, silence())
	probe.Cancel()
	require.Zero(t, silence())
	mustReserve(t, p, router.Request{PromptTokens: 10, Exclude: []string{"b"}, ExcludeHard: true})
	require.Zero(t, silence(), "what has been answered is forgotten")
	pass(10 * time.Minute)
	require.Equal(t, 10*time.Minute, silence())
	require.EqualValues(t, 1, p.Stats().Endpoints[0].Own.Live.Requests)
}

// However long it was, it is remembered for a minute.
func TestASilenceIsRememberedForAMinute(t *testing.T) {
	p, _, waits, pass := hung(t)
	pass(10 * time.Minute)
	waits.Cancel()
	require.Equal(t, time.Minute, p.Stats().Endpoints[0].Silence)
	pass(59 * time.Second)
	require.Equal(t, time.Second, p.Stats().Endpoints[0].Silence)
}

// Clients with a timeout of a second meet a hung engine ever more seldom.
func TestVictimsOfAHang(t *testing.T) {
	p, req, waits, pass := hung(t)
	pass(time.Second)
	waits.Cancel()
	victims := 0
	for range 60 {
		l := mustReserve(t, p, req)
		if l.Endpoint().ID == "a" {
			victims++
			pass(time.Second)
			l.Cancel()
			continue
		}
		l.FirstToken()
		l.Done(router.Usage{OutputTokens: 1})
		pass(time.Second)
	}
	require.LessOrEqual(t, victims, 6)
	require.GreaterOrEqual(t, victims, 3, "now and then one finds out")
}

// A new process has nothing to do with the silence of the one before.
func TestARestartEndsASilence(t *testing.T) {
	for _, given := range []bool{false, true} {
		p, c, _ := warm(t, router.Config{})
		observe(t, p, c, "a", telemetry.Snapshot{Running: telemetry.V(1), Waiting: telemetry.V(0), Epoch: "1"})
		l := mustReserve(t, p, router.Request{PromptTokens: 500, Exclude: []string{"b"}, ExcludeHard: true})
		c.advance(10 * time.Second)
		if given {
			l.Cancel()
		}
		require.Equal(t, 10*time.Second, p.Stats().Endpoints[0].Silence)
		observe(t, p, c, "a", telemetry.Snapshot{Running: telemetry.V(0), Waiting: telemetry.V(0), Epoch: "2"})
		require.Zero(t, p.Stats().Endpoints[0].Silence)
		mustReserve(t, p, router.Request{PromptTokens: 500, Exclude: []string{"b"}, ExcludeHard: true})
		c.advance(time.Second)
		require.Equal(t, time.Second, p.Stats().Endpoints[0].Silence)
	}
}

// Where silences that end are ordinary they mean nothing, as where a host tells of no first tokens.
func TestUsualSilence(t *testing.T) {
	p, c, req := warm(t, router.Config{})
	onA := func() *router.Lease {
		return mustReserve(t, p, router.Request{PromptTokens: 500, ExpectedOutputTokens: 1, Exclude: []string{"b"}, ExcludeHard: true})
	}
	silence := func() float64 {
		idle(t, p, c, "b")
		return candidate(t, scored(t, p, req), "a").Silence
	}
	l := onA()
	c.advance(10 * time.Second)
	require.InDelta(t, 10_000-500-100, silence(), 1e-9)
	l.Done(router.Usage{})
	onA()
	c.advance(10 * time.Second)
	require.Zero(t, silence(), "it has been so before")
	c.advance(time.Second)
	require.InDelta(t, 1000-100, silence(), 1e-9)

	p, c, req = warm(t, router.Config{})
	l = onA()
	c.advance(10 * time.Second)
	l.Done(router.Usage{})
	for range 100 {
		onA().FirstToken()
	}
	onA()
	c.advance(3 * time.Second)
	require.InDelta(t, 3000-100-10_000*0.1326, silence(), 1, "a hundred first tokens later it is as good as forgotten: 0.98^100")
}

// An adapter that may have to be loaded explains a silence of as long.
func TestAnAdapterExplainsASilence(t *testing.T) {
	p, c, req := warm(t, router.Config{})
	profile := flat
	profile.AdapterLoad = 2000
	require.NoError(t, p.Add(router.Endpoint{ID: "a", Profile: profile}))
	send := func(adapter string) {
		mustReserve(t, p, router.Request{PromptTokens: 500, Adapter: router.Adapter{ID: adapter, Digest: "1"}, Exclude: []string{"b"}, ExcludeHard: true})
	}
	silence := func() float64 { return candidate(t, scored(t, p, req), "a").Silence }
	send("x")
	c.advance(3 * time.Second)
	idle(t, p, c, "b")
	require.InDelta(t, 3000-2000-500-100, silence(), 1e-9)
	send("x") // which is known to be there now
	c.advance(time.Second)
	idle(t, p, c, "b")
	require.InDelta(t, 4000-2000-1000-100, silence(), 1e-9)
	send("y")
	require.Zero(t, silence())
}

// A silence says nothing certain, so that nobody is refused for it.
func TestSilenceRefusesNobody(t *testing.T) {
	p, req, _, pass := hung(t)
	require.NoError(t, p.Drain("b"))
	pass(10 * time.Second)
	d := scored(t, p, req)
	require.Greater(t, d.Terms.Queue, 9000.0)
	req.Deadline = d.At.Add(2 * time.Second)
	require.Equal(t, "a", mustReserve(t, p, req).Endpoint().ID)
}

func TestSilenceIsReplayed(t *testing.T) {
	p, req, _, pass := hung(t)
	pass(2 * time.Second)
	d := scored(t, p, req)
	require.Positive(t, candidate(t, d, "a").Silence)
	again, err := router.Replay(&router.Receipt{Decision: d, PromptTokens: 1600, OutputTokens: 1}, router.Config{})
	require.NoError(t, err)
	require.Equal(t, candidate(t, d, "a").Terms, candidate(t, again, "a").Terms)
	require.Equal(t, candidate(t, d, "a").Silence, candidate(t, again, "a").Silence)
}
