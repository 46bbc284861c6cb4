package scrape_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/telemetry/scrape"
)

// life is one life of an endpoint, as the engines saw it.
type life struct {
	number         int // in bodies and in errors
	id             string
	added, removed time.Time // removed: zero = never
	polls          []poll
	told           int // results that reached the sink
}

type poll struct {
	start, end time.Time
	good, cut  bool // cut: its context ended before its timeout
}

// behaviour is how an engine takes one poll.
type behaviour struct {
	kind string // good, bad, hang
	wait time.Duration
}

// world is a fleet that changes, and what it saw.
type world struct {
	cfg   scrape.Config
	plans map[string][]behaviour // by ID, taken in turn

	mu       sync.Mutex
	current  map[string]*life
	lives    []*life
	busy     int
	peak     int
	problems []string
}

func (w *world) targets() []scrape.Target {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []scrape.Target
	for _, l := range w.current {
		n := fmt.Sprint(l.number)
		out = append(out, scrape.Target{ID: l.id, Incarnation: n, URL: "http://" + l.id + "-" + n + "/"})
	}
	return out
}

func (w *world) begin(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.current[id]; l != nil {
		l.removed = time.Now()
	}
	l := &life{number: len(w.lives) + 1, id: id, added: time.Now()}
	w.lives = append(w.lives, l)
	w.current[id] = l
}

func (w *world) end(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.current[id]; l != nil {
		l.removed = time.Now()
		delete(w.current, id)
	}
}

func (w *world) complain(format string, args ...any) {
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

func (w *world) answer(req *http.Request) (*http.Response, error) {
	id, _, _ := strings.Cut(req.URL.Host, "-")
	w.mu.Lock()
	var l *life
	for _, one := range w.lives {
		if req.URL.Host == fmt.Sprintf("%s-%d", one.id, one.number) {
			l = one
		}
	}
	if n := len(l.polls); n > 0 && l.polls[n-1].end.IsZero() {
		w.complain("two polls of life %d at once", l.number)
	}
	b := w.plans[id][len(l.polls)%len(w.plans[id])]
	at := len(l.polls)
	l.polls = append(l.polls, poll{start: time.Now()})
	w.busy++
	w.peak = max(w.peak, w.busy)
	w.mu.Unlock()

	var resp *http.Response
	var err error
	if b.kind == "hang" {
		resp, err = hang(req)
	} else {
		resp, err = after(req, b.wait, 200, fmt.Sprint(l.number))
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy--
	l.polls[at].end = time.Now()
	l.polls[at].cut = errors.Is(err, context.Canceled)
	if err == nil && b.kind == "good" {
		l.polls[at].good = true
		return resp, nil
	}
	if err == nil {
		err = errors.New("refused")
	}
	return nil, fmt.Errorf("life %d: %w", l.number, err)
}

// hear checks that a result is told to the life that it is of, once, and with the time of its poll.
func (w *world) hear(c told) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.current[c.id]
	if l == nil {
		w.complain("told of %s, which has gone", c.id)
		return nil
	}
	l.told++
	if l.told > len(l.polls) {
		w.complain("life %d: told more often than polled", l.number)
		return nil
	}
	p := l.polls[l.told-1]
	switch {
	case p.good != (c.err == nil):
		w.complain("life %d: told %v of a poll that was good: %v", l.number, c.err, p.good)
	case c.err == nil && int(c.running()) != l.number:
		w.complain("life %d is told of life %v", l.number, c.running())
	case c.err == nil && !c.snapshot.ObservedAt.Equal(p.start):
		w.complain("life %d: observed at %v, sent at %v", l.number, c.snapshot.ObservedAt, p.start)
	case c.err != nil && !strings.Contains(c.err.Error(), fmt.Sprintf("life %d:", l.number)):
		w.complain("life %d is told %v", l.number, c.err)
	}
	return nil
}

// inspect holds the starts of a life's polls to the plain rules.
func (w *world) inspect(l *life, end time.Time) {
	const slack = time.Microsecond // of rounding
	every, j := w.cfg.Every, max(w.cfg.Jitter, 0)
	part := func(d time.Duration, f float64) time.Duration { return time.Duration(float64(d) * f) }
	if !l.removed.IsZero() {
		end = l.removed
	}
	bounded := w.cfg.MaxConcurrent > 0
	soonest, latest := l.added, l.added.Add(every+part(every, j))
	failures := 0
	for i, p := range l.polls {
		if p.start.Before(soonest.Add(-slack)) {
			w.complain("life %d, poll %d: %v too soon", l.number, i, soonest.Sub(p.start))
		}
		if !bounded && p.start.After(latest.Add(slack)) {
			w.complain("life %d, poll %d: %v too late", l.number, i, p.start.Sub(latest))
		}
		if p.end.IsZero() {
			w.complain("life %d, poll %d: never ended", l.number, i)
			return
		}
		if p.cut {
			if p.end.Before(end) {
				w.complain("life %d, poll %d: cut while it lived", l.number, i)
			}
			return
		}
		if took := p.end.Sub(p.start); took > w.cfg.Timeout {
			w.complain("life %d, poll %d took %v", l.number, i, took)
		}
		low, high := 1-j, 1+j
		if i == 0 && j > 0 {
			low, high = 0.5, 1.5
		}
		if p.good {
			failures = 0
			soonest, latest = p.start.Add(part(every, low)), p.start.Add(part(every, high))
			if p.end.After(soonest) {
				soonest = p.end
			}
			if other := p.end.Add(every); other.After(latest) {
				latest = other
			}
			continue
		}
		failures++
		wait := every
		for range failures - 1 {
			if 2*wait > w.cfg.MaxBackoff {
				wait = max(w.cfg.MaxBackoff, every)
				break
			}
			wait *= 2
		}
		soonest, latest = p.end.Add(part(wait, 1-j)), p.end.Add(wait)
	}
	if !bounded && end.After(latest.Add(slack)) {
		w.complain("life %d: no poll %d until %v after it was due", l.number, len(l.polls), end.Sub(latest))
	}
}

// Any fleet, any behaviour of its engines and any changes of it: each life is polled by the rules, one poll at a time, and
// every result reaches the life that it is of, or nobody.
func TestAnyFleet(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) { rapid.SyncTest(rt, anyFleet) })
}

func anyFleet(t *rapid.T) {
	ms := func(low, high int, label string) time.Duration {
		return time.Duration(rapid.IntRange(low, high).Draw(t, label)) * time.Millisecond
	}
	ids := []string{"a", "b", "c", "d"}[:rapid.IntRange(1, 4).Draw(t, "endpoints")]
	every := ms(100, 1000, "every")
	w := &world{current: map[string]*life{}, plans: map[string][]behaviour{}}
	sink := &recorder{check: w.hear}
	w.cfg = scrape.Config{
		Targets: w.targets, Sink: sink, Client: transport(w.answer).client(), Parse: parse, Every: every,
		Timeout: ms(50, 3000, "timeout"), MaxBackoff: every * time.Duration(rapid.IntRange(1, 20).Draw(t, "cap")),
		Jitter:        rapid.SampledFrom([]float64{scrape.None, 0.1, 0.5}).Draw(t, "jitter"),
		Seed:          rapid.Uint64().Draw(t, "seed"),
		MaxConcurrent: rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(t, "places"),
	}
	for _, id := range ids {
		plan := make([]behaviour, rapid.IntRange(1, 4).Draw(t, "plan"))
		for i := range plan {
			plan[i] = behaviour{rapid.SampledFrom([]string{"good", "good", "good", "bad", "hang"}).Draw(t, "kind"), ms(0, 1500, "wait")}
		}
		w.plans[id] = plan
		w.begin(id)
	}
	p, err := scrape.New(w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- p.Run(ctx) }()
	// No change falls on the moment of an answer, where either life would do: each has its own fraction of a millisecond.
	const odd = 1003 * time.Nanosecond
	for range rapid.IntRange(0, 8).Draw(t, "changes") {
		time.Sleep(ms(1, 3000, "pause") + odd)
		id := rapid.SampledFrom(ids).Draw(t, "id")
		switch rapid.IntRange(0, 2).Draw(t, "change") {
		case 0:
			w.end(id)
		default:
			w.begin(id)
		}
		if rapid.Bool().Draw(t, "sync") {
			p.Sync()
		}
	}
	time.Sleep(ms(1, 10_000, "rest") + odd)
	end := time.Now()
	cancel()
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	polls, heard := 0, 0
	for _, l := range w.lives {
		w.inspect(l, end)
		polls += len(l.polls)
		heard += l.told
		whole := slices.DeleteFunc(slices.Clone(l.polls), func(p poll) bool { return p.cut })
		if missing := len(whole) - l.told; missing > 1 || missing == 1 && l.removed.IsZero() {
			w.complain("life %d: %d of %d results were told", l.number, l.told, len(whole))
		}
	}
	if w.cfg.MaxConcurrent > 0 && w.peak > w.cfg.MaxConcurrent {
		w.complain("%d polls at once", w.peak)
	}
	s := p.Stats()
	if int(s.Polls) != polls || int(s.Successes+s.Failures) != heard || int(s.Abandoned) != polls-heard || s.InFlight != 0 {
		w.complain("%d polls, %d told, but %+v", polls, heard, s.Totals)
	}
	if len(w.problems) > 0 {
		t.Fatalf("%s", strings.Join(w.problems, "\n"))
	}
}
