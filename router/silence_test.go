package router_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

// hung makes a pool of two in which a holds the prefix of the request, has got a request of 400 tokens, which explain 400 ms, and gives no sign of life.
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
	waits = mustReserve(t, p, router.Request{PromptTokens: 400, ExpectedOutputTokens: 1, Exclude: []string{"b"}, ExcludeHard: true})
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
	require.Zero(t, candidate(t, d, "a").Load.Silence)
	pass(400 * time.Millisecond)
	require.Zero(t, candidate(t, scored(t, p, req), "a").Load.Silence, "400 tokens take as long, and 100 ms mean nothing")
	queue := candidate(t, scored(t, p, req), "a").Terms.Queue
	pass(time.Second)
	d = scored(t, p, req)
	a := candidate(t, d, "a")
	require.InDelta(t, 1000, a.Load.Silence, 1e-9)
	require.InDelta(t, queue+1000, a.Terms.Queue, 1e-6)
	require.Equal(t, "b", d.Endpoint)
	require.Contains(t, d.Explain(), "silent for 1000.0 ms longer than usual")
	stats := p.Stats().Endpoints
	require.Equal(t, time.Second, stats[0].Silence)
	require.Zero(t, stats[1].Silence, "nothing waits there")

	waits.FirstToken()
	require.Equal(t, "a", scored(t, p, req).Endpoint)
	require.Zero(t, p.Stats().Endpoints[0].Silence)
	pass(time.Minute)
	require.Zero(t, candidate(t, scored(t, p, req), "a").Load.Silence, "nobody waits for a first token")
}

// Whatever an engine computes shows that it lives; what does not come from it shows nothing, nor what a process before it can say.
func TestSignsOfLife(t *testing.T) {
	for name, x := range map[string]struct {
		prompt int64
		sign   func(other *router.Lease)
		lives  bool
	}{
		"first token of another":  {100, (*router.Lease).FirstToken, true},
		"tokens of another":       {100, func(l *router.Lease) { l.Progress(3) }, true},
		"end of another":          {100, func(l *router.Lease) { l.Done(router.Usage{}) }, true},
		"end of one with tokens":  {0, func(l *router.Lease) { l.Progress(3); l.Done(router.Usage{}) }, true},
		"end without a prompt":    {0, func(l *router.Lease) { l.Done(router.Usage{}) }, false},
		"refusal of another":      {100, func(l *router.Lease) { l.Refuse(nil) }, false},
		"headers of another":      {100, (*router.Lease).Started, false},
		"cancelling another":      {100, (*router.Lease).Cancel, false},
		"failure of another":      {100, func(l *router.Lease) { l.Fail(nil) }, false},
		"a number that goes back": {100, func(l *router.Lease) { l.Progress(-1) }, false},
		"second end of another":   {100, func(l *router.Lease) { l.Cancel(); l.Done(router.Usage{}) }, false},
		"tokens after the end":    {100, func(l *router.Lease) { l.Cancel(); l.Progress(9); l.FirstToken() }, false},
		"no progress at all":      {100, func(l *router.Lease) { l.Progress(0) }, false},
		"a request comes besides": {100, func(*router.Lease) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p, req, _, pass := hung(t)
			other := mustReserve(t, p, router.Request{PromptTokens: x.prompt, Exclude: []string{"b"}, ExcludeHard: true})
			pass(4 * time.Second)
			before := candidate(t, scored(t, p, req), "a").Load.Silence
			require.InDelta(t, 4000+100-100-400-float64(x.prompt), before, 1e-9, "since the first of both was sent")
			x.sign(other)
			if a := candidate(t, scored(t, p, req), "a"); x.lives {
				require.Zero(t, a.Load.Silence)
			} else {
				require.InDelta(t, before+100, a.Load.Silence, 101, "its prompt may not explain it any more")
			}
		})
	}
}

// alone makes a pool of one engine, at which a request without a prompt waits, and returns its silence.
func alone(t *testing.T) (p *router.Pool, c *clock, silence func() time.Duration) {
	t.Helper()
	c = newClock()
	p, err := router.New(router.Config{Now: c.now, FrozenAfter: router.None})
	require.NoError(t, err)
	require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "a", Profile: flat}}))
	report(t, p, c, "a", 0, 0, 0.1)
	mustReserve(t, p, router.Request{})
	return p, c, func() time.Duration { return p.Stats().Endpoints[0].Silence }
}

// Memory that is taken shows that the engine lived at some time after the report before, not how long after. Requests come and go
// without it.
func TestMemoryThatIsTakenIsASignOfLife(t *testing.T) {
	p, c, silence := alone(t)
	c.advance(3100 * time.Millisecond)
	report(t, p, c, "a", 1, 700, 0.2)
	require.Equal(t, 3*time.Second, silence(), "the report before was from before the request")
	c.advance(2 * time.Second)
	report(t, p, c, "a", 2, 900, 0.2)
	require.Equal(t, 5*time.Second, silence(), "another request has come")
	c.advance(time.Second)
	report(t, p, c, "a", 1, 700, 0.15)
	require.Equal(t, 6*time.Second, silence(), "and given up")
	c.advance(3 * time.Second)
	report(t, p, c, "a", 1, 700, 0.16)
	require.Equal(t, 3*time.Second-100*time.Millisecond-time.Second, silence(), "a second of silence is usual now")
	c.advance(time.Second)
	require.NoError(t, p.Observe("a", telemetry.Snapshot{ObservedAt: c.now(), Running: telemetry.V(1), Waiting: telemetry.V(0)}))
	require.Equal(t, 2900*time.Millisecond, silence(), "not known")
}

// A client that gives up has seen no sign of life: the silence is remembered for as long as it lasted, beyond what its prompt explains,
// and goes on with the next.
func TestAHangOutlivesItsVictims(t *testing.T) {
	p, req, waits, pass := hung(t)
	silence := func() time.Duration { return p.Stats().Endpoints[0].Silence }
	pass(2 * time.Second)
	waits.Cancel()
	require.Equal(t, 1600*time.Millisecond, silence())
	require.Equal(t, "b", scored(t, p, req).Endpoint)
	pass(time.Second)
	require.Equal(t, 600*time.Millisecond, silence())
	pass(600 * time.Millisecond)
	require.Zero(t, silence())
	d := scored(t, p, req)
	require.Equal(t, "a", d.Endpoint, "one finds out")
	probe := mustReserve(t, p, req)
	require.Equal(t, "a", probe.Endpoint().ID)
	require.Equal(t, 3200*time.Millisecond, silence(), "it goes on")
	require.Equal(t, "b", scored(t, p, req).Endpoint, "no second one meanwhile")
	pass(2 * time.Second)
	require.Equal(t, 5100*time.Millisecond, silence(), "with 100 ms again that mean nothing")
	probe.Cancel()
	pass(5 * time.Second)
	require.Equal(t, 100*time.Millisecond, silence())
	pass(time.Hour)
	probe = mustReserve(t, p, only("a", router.Request{}))
	require.Equal(t, 10200*time.Millisecond, silence(), "not the hour in which nobody asked")
	probe.FirstToken()
	require.Zero(t, silence())
	probe.Cancel()
	require.Zero(t, silence())
	mustReserve(t, p, only("a", router.Request{}))
	require.Zero(t, silence(), "what has been answered is forgotten")
}

// However long it was, it counts and is remembered for a minute: then the next may find out.
func TestASilenceCountsForAMinute(t *testing.T) {
	p, _, waits, pass := hung(t)
	silence := func() time.Duration { return p.Stats().Endpoints[0].Silence }
	pass(59 * time.Second)
	require.Equal(t, 59100*time.Millisecond-500*time.Millisecond, silence())
	pass(time.Second)
	require.Zero(t, silence(), "who waits for a minute")
	next := mustReserve(t, p, only("a", router.Request{}))
	require.Equal(t, 59500*time.Millisecond, silence(), "is followed by one, and no more")
	next.Cancel()
	require.Equal(t, 59500*time.Millisecond, silence(), "the first still waits")
	waits.Cancel()
	pass(59 * time.Second)
	require.Equal(t, 500*time.Millisecond, silence())
}

// A lease that its host has lost does not keep an engine that works from being used.
func TestALostLeaseIsNoSilence(t *testing.T) {
	p, c, _ := warm(t, router.Config{})
	mustReserve(t, p, only("a", router.Request{}))
	mustReserve(t, p, only("b", router.Request{})).FirstToken()
	chosen := map[string]int{}
	for range 300 {
		c.advance(time.Second)
		idle(t, p, c, "a", "b")
		l := mustReserve(t, p, router.Request{PromptTokens: 10, ExpectedOutputTokens: 1})
		chosen[l.Endpoint().ID]++
		l.FirstToken()
		c.advance(10 * time.Millisecond)
		l.Done(router.Usage{OutputTokens: 1})
	}
	require.Greater(t, chosen["a"], 100, "%v", chosen)
}

// Clients that give up before their prompt can have been computed make no silence, however many.
func TestTimelyCancelsAreNoSilence(t *testing.T) {
	p, c, silence := alone(t)
	for range 50 {
		l := mustReserve(t, p, router.Request{PromptTokens: 2000})
		c.advance(time.Second)
		l.Cancel()
		c.advance(time.Second)
	}
	require.Zero(t, silence())
	before := mustReserve(t, p, router.Request{PromptTokens: 400})
	for range 100 { // one who types, and asks anew with each key
		c.advance(300 * time.Millisecond)
		l := mustReserve(t, p, router.Request{PromptTokens: 400})
		before.Cancel()
		before = l
	}
	require.Zero(t, silence(), "as long as their prompts would have taken longer")
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
		p, c, silence := alone(t)
		observe(t, p, c, "a", telemetry.Snapshot{Running: telemetry.V(1), Waiting: telemetry.V(0), Epoch: "1"})
		l := mustReserve(t, p, router.Request{})
		c.advance(10 * time.Second)
		if given {
			l.Cancel()
		}
		require.Equal(t, 9900*time.Millisecond, silence())
		observe(t, p, c, "a", telemetry.Snapshot{Running: telemetry.V(0), Waiting: telemetry.V(0), Epoch: "2"})
		require.Zero(t, silence())
		mustReserve(t, p, router.Request{})
		c.advance(time.Second)
		require.Equal(t, 900*time.Millisecond, silence(), "and nothing was learned")
	}
}

// Where a host tells of no first tokens, silences as long as its answers are usual.
func TestAHostThatTellsOfNoFirstTokens(t *testing.T) {
	p, c, req := warm(t, router.Config{})
	most := 0.0
	for i := range 30 {
		l := mustReserve(t, p, router.Request{PromptTokens: 100, ExpectedOutputTokens: 1, Exclude: []string{"b"}, ExcludeHard: true})
		c.advance(10 * time.Second)
		idle(t, p, c, "b")
		silence := candidate(t, scored(t, p, req), "a").Load.Silence
		if most = max(most, silence); i >= 4 {
			require.LessOrEqual(t, silence, 200.0, "it has been so before")
		}
		l.Done(router.Usage{})
	}
	require.InDelta(t, 10_000-100-100, most, 1e-9, "the first is one")
}

// Where one engine has hung and come back, another that hangs is noticed as soon.
func TestTheNextHangIsNoticedToo(t *testing.T) {
	p, c, _ := warm(t, router.Config{})
	on := func(id, other string) *router.Lease {
		return mustReserve(t, p, router.Request{PromptTokens: 100, ExpectedOutputTokens: 1, Exclude: []string{other}, ExcludeHard: true})
	}
	l := on("a", "b")
	c.advance(10 * time.Minute)
	l.FirstToken()
	l.Done(router.Usage{})
	on("b", "a")
	c.advance(3 * time.Second)
	require.Equal(t, 3*time.Second-100*time.Millisecond-time.Second, p.Stats().Endpoints[1].Silence)
}

// An adapter that may have to be loaded explains a silence of as long.
func TestAnAdapterExplainsASilence(t *testing.T) {
	p, c, req := warm(t, router.Config{})
	profile := flat
	profile.AdapterLoad = 2000
	require.NoError(t, p.Add(router.Endpoint{ID: "a", Profile: profile}))
	send := func(adapter string) {
		mustReserve(t, p, router.Request{
			PromptTokens: 500, Adapter: router.Adapter{ID: adapter, Digest: "1"}, Exclude: []string{"b"}, ExcludeHard: true,
		})
	}
	silence := func() float64 { return candidate(t, scored(t, p, req), "a").Load.Silence }
	send("x")
	c.advance(3 * time.Second)
	idle(t, p, c, "b")
	require.InDelta(t, 3000-2000-500-100, silence(), 1e-9)
	send("x") // which is known to be there now
	c.advance(time.Second)
	idle(t, p, c, "b")
	require.InDelta(t, 4000-2000-1000-100, silence(), 1e-9)
	send("y")
	require.InDelta(t, 4000-2000-1500-100, silence(), 1e-9, "an engine that hangs already is not excused by another")
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

// Requests that come and go on an engine that works leave no silence behind, whoever looks on meanwhile.
func TestNoGhostsOfSilence(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a")
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if d, err := p.Score(router.Request{}); err != nil || d.Candidates[0].Load.Silence != 0 {
					t.Errorf("%v %v", d.Candidates[0].Load.Silence, err)
					return
				}
			}
		}
	})
	for range 5000 {
		c.advance(time.Hour)
		l := mustReserve(t, p, router.Request{PromptTokens: 10})
		l.FirstToken()
		l.Progress(3)
		l.Done(router.Usage{})
	}
	close(stop)
	all.Wait()
}
