package scrape_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/scrape"
)

func TestAddAndRemove(t *testing.T) {
	f, sink, began := newFleet("a"), &recorder{}, &starts{}
	var start time.Time
	bubble(t, func() scrape.Config {
		start = time.Now()
		return clockless(f, sink, func(req *http.Request) (*http.Response, error) {
			began.add(req)
			return after(req, 0, 200, "1")
		})
	}, func(t *testing.T, p *scrape.Poller) {
		time.Sleep(2500 * time.Millisecond)
		f.set(target("a", ""), target("b", ""))
		time.Sleep(2 * time.Second)
		assert.Equal(t, seconds(3, 4), since(start, began.of("b")), "seen with the next answer of a")
		f.set(target("b", ""))
		time.Sleep(2 * time.Second)
		assert.Equal(t, seconds(0, 1, 2, 3, 4), since(start, began.of("a")))
		_, ok := p.Endpoint("a")
		assert.False(t, ok)
		f.set()
		time.Sleep(5 * time.Second)
		assert.Empty(t, p.Stats().Endpoints)
		n := len(sink.all())
		time.Sleep(time.Minute)
		assert.Len(t, sink.all(), n)
	})
}

// Where polls are rare, Sync has a change seen at once, also one to a list that was empty.
func TestSync(t *testing.T) {
	f, sink := newFleet(), &recorder{}
	bubble(t, func() scrape.Config {
		c := clockless(f, sink, func(req *http.Request) (*http.Response, error) { return after(req, 0, 200, "1") })
		c.Every = time.Hour
		return c
	}, func(t *testing.T, p *scrape.Poller) {
		time.Sleep(time.Second)
		f.set(target("a", ""))
		time.Sleep(time.Minute)
		require.Empty(t, sink.all())
		for range 5 {
			p.Sync()
		}
		synctest.Wait()
		assert.Len(t, sink.of("a"), 1)
		time.Sleep(time.Hour + time.Second)
		assert.Len(t, sink.of("a"), 2)
	})
}

// A sink that changes the target it is told of, right before the next poll is due, and calls Sync is not told of the old
// one once more.
func TestSyncFromSink(t *testing.T) {
	f, sink, began := newFleet("old"), &recorder{}, &starts{}
	var p atomic.Pointer[scrape.Poller]
	var start time.Time
	sink.check = func(told) error {
		f.set(scrape.Target{ID: "old", URL: "http://new/metrics"})
		p.Load().Sync()
		return nil
	}
	bubble(t, func() scrape.Config {
		start = time.Now()
		c := clockless(f, sink, func(req *http.Request) (*http.Response, error) {
			began.add(req)
			if req.URL.Host == "new" {
				return after(req, 0, 200, "2")
			}
			return after(req, 990*time.Millisecond, 200, "1")
		})
		c.Targets = func() []scrape.Target { // slow, so that readings of them are 50 ms apart
			time.Sleep(time.Millisecond)
			return f.targets()
		}
		return c
	}, func(t *testing.T, poller *scrape.Poller) {
		p.Store(poller)
		time.Sleep(2500 * time.Millisecond)
		assert.Len(t, began.of("old"), 1)
		require.NotEmpty(t, began.of("new"))
		assert.Less(t, since(start, began.of("new"))[0], 1100*time.Millisecond)
	})
}

// The old life's answer comes long after the new life began, and right when it begins: neither is told to the new one.
func TestReplacedDuringPoll(t *testing.T) {
	for _, moment := range []time.Duration{100 * time.Millisecond, 500 * time.Millisecond} {
		f, sink := newFleet("a"), &recorder{}
		var cancelled atomic.Bool
		bubble(t, func() scrape.Config {
			f.set(scrape.Target{ID: "a", Incarnation: "one", URL: "http://old/metrics"})
			return clockless(f, sink, func(req *http.Request) (*http.Response, error) {
				if req.URL.Host == "new" {
					return after(req, 0, 200, "2")
				}
				resp, err := after(req, 500*time.Millisecond, 200, "1")
				cancelled.Store(err != nil)
				if moment == 500*time.Millisecond {
					f.set(scrape.Target{ID: "a", Incarnation: "two", URL: "http://new/metrics"})
				}
				return resp, err
			})
		}, func(t *testing.T, p *scrape.Poller) {
			if moment < 500*time.Millisecond {
				time.Sleep(moment)
				f.set(scrape.Target{ID: "a", Incarnation: "two", URL: "http://new/metrics"})
				p.Sync()
				synctest.Wait()
				assert.True(t, cancelled.Load(), "nobody waits for the old answer")
			}
			time.Sleep(5 * time.Second)
			calls := sink.of("a")
			require.NotEmpty(t, calls)
			for _, c := range calls {
				require.NoError(t, c.err)
				assert.EqualValues(t, 2, c.running())
			}
			s, _ := p.Endpoint("a")
			assert.Equal(t, "two", s.Incarnation)
			assert.EqualValues(t, 1, p.Stats().Abandoned)
		})
	}
}

// The failure of an endpoint that has gone is not told either.
func TestRemovedDuringFailure(t *testing.T) {
	f, sink := newFleet("a"), &recorder{}
	bubble(t, func() scrape.Config {
		return clockless(f, sink, func(req *http.Request) (*http.Response, error) {
			f.set()
			return nil, errors.New("refused")
		})
	}, func(t *testing.T, p *scrape.Poller) {
		time.Sleep(5 * time.Second)
		assert.Empty(t, sink.all())
		assert.Equal(t, scrape.Totals{Polls: 1, Abandoned: 1}, p.Stats().Totals)
	})
}

// An endpoint that was removed and comes back, and one with another incarnation, begin without the failures of before.
func TestReaddedBeginsAfresh(t *testing.T) {
	f, began := newFleet("a"), &starts{}
	var start time.Time
	bubble(t, func() scrape.Config {
		start = time.Now()
		return clockless(f, &recorder{}, func(req *http.Request) (*http.Response, error) {
			began.add(req)
			return nil, errors.New("refused")
		})
	}, func(t *testing.T, p *scrape.Poller) {
		time.Sleep(20 * time.Second)
		require.Equal(t, seconds(0, 1, 3, 7, 15), since(start, began.of("a")))
		f.set(target("a", "two"))
		p.Sync()
		synctest.Wait()
		s, _ := p.Endpoint("a")
		assert.Equal(t, 1, s.ConsecutiveFailures)
		f.set()
		p.Sync()
		synctest.Wait()
		f.set(target("a", "two"))
		p.Sync()
		synctest.Wait()
		s, _ = p.Endpoint("a")
		assert.Equal(t, 1, s.ConsecutiveFailures)
		assert.Equal(t, seconds(0, 1, 3, 7, 15, 20, 20), since(start, began.of("a")))
		assert.EqualValues(t, 7, p.Stats().Failures, "totals go on")
	})
}

// A change of URL within a life ends the back-off, but nobody is asked more often than Every, even if a confused host
// changes it each time it is asked.
func TestMovedURL(t *testing.T) {
	f, began := newFleet("a"), &starts{}
	sink := &recorder{}
	var start time.Time
	var flap atomic.Bool
	var flips atomic.Int32
	bubble(t, func() scrape.Config {
		start = time.Now()
		c := clockless(f, sink, func(req *http.Request) (*http.Response, error) {
			began.add(req)
			if req.URL.Host == "new" {
				return after(req, 0, 200, "2")
			}
			return nil, errors.New("refused")
		})
		c.Targets = func() []scrape.Target {
			if flap.Load() && flips.Add(1)%3 == 0 {
				return []scrape.Target{{ID: "a", URL: "http://old/metrics"}}
			}
			return f.targets()
		}
		return c
	}, func(t *testing.T, p *scrape.Poller) {
		time.Sleep(7500 * time.Millisecond)
		require.Equal(t, seconds(0, 1, 3, 7), since(start, began.of("a")))
		f.set(scrape.Target{ID: "a", URL: "http://new/metrics"})
		time.Sleep(3 * time.Second)
		assert.Equal(t, seconds(8, 9, 10), since(start, began.of("new")), "not at 15")
		s, _ := p.Endpoint("a")
		assert.EqualValues(t, 4, s.Failures, "the same life")
		flap.Store(true)
		n := len(sink.all())
		time.Sleep(20 * time.Second)
		assert.LessOrEqual(t, len(sink.all())-n, 21)
		assert.Positive(t, len(began.of("old")))
	})
}

func TestIgnoredTargets(t *testing.T) {
	f, began := newFleet(), &starts{}
	f.set(target("a", "one"), scrape.Target{URL: "http://nobody/"}, scrape.Target{ID: "a", Incarnation: "two", URL: "http://twice/"}, target("b", ""))
	bubble(t, func() scrape.Config {
		return clockless(f, &recorder{}, func(req *http.Request) (*http.Response, error) {
			began.add(req)
			return after(req, 0, 200, "1")
		})
	}, func(t *testing.T, p *scrape.Poller) {
		time.Sleep(3500 * time.Millisecond)
		s := p.Stats()
		assert.Equal(t, 2, s.Ignored)
		require.Len(t, s.Endpoints, 2)
		assert.Equal(t, "one", s.Endpoints[0].Incarnation)
		assert.EqualValues(t, 4, s.Endpoints[0].Successes)
		assert.Empty(t, began.of("nobody"))
		assert.Empty(t, began.of("twice"))
		f.set(target("a", "one"), target("a", "one"))
		time.Sleep(time.Second)
		assert.Equal(t, 1, p.Stats().Ignored)
		assert.Len(t, p.Stats().Endpoints, 1, "an entry that is ignored does not keep b")
		f.set(target("a", "one"))
		time.Sleep(time.Second)
		assert.Zero(t, p.Stats().Ignored)
	})
}

// A target that cannot be asked fails without a request, and is told like any other failure.
func TestBadTarget(t *testing.T) {
	f, sink, began := newFleet(), &recorder{}, &starts{}
	f.set(
		scrape.Target{ID: "relative", URL: "/metrics"}, scrape.Target{ID: "scheme", URL: "unix:///run/engine?token=secret"},
		scrape.Target{ID: "broken", URL: "http://[::1/?token=secret"}, scrape.Target{ID: "empty"},
		scrape.Target{ID: "kind", URL: "http://kind/metrics", Engine: enginePrinter("no such engine")},
	)
	bubble(t, func() scrape.Config {
		c := clockless(f, sink, func(req *http.Request) (*http.Response, error) {
			began.add(req)
			return after(req, 0, 200, "1")
		})
		c.Parse = nil
		return c
	}, func(t *testing.T, p *scrape.Poller) {
		time.Sleep(1500 * time.Millisecond)
		assert.Len(t, sink.all(), 10)
		assert.Empty(t, began.of("kind"))
		for _, c := range sink.all() {
			var failure *scrape.Error
			require.ErrorAs(t, c.err, &failure)
			assert.Equal(t, scrape.ReasonTarget, failure.Reason, c.id)
			assert.NotContains(t, c.err.Error(), "secret")
		}
		assert.Equal(t, map[scrape.Reason]uint64{scrape.ReasonTarget: 10}, p.Stats().FailuresBy)
	})
}

// A poll that fails while the URL changes is not followed by a back-off either.
func TestMovedDuringPoll(t *testing.T) {
	f, began := newFleet("a"), &starts{}
	var start time.Time
	bubble(t, func() scrape.Config {
		start = time.Now()
		return clockless(f, &recorder{}, func(req *http.Request) (*http.Response, error) {
			if began.add(req); req.URL.Host == "new" {
				return after(req, 0, 200, "2")
			}
			_, err := after(req, 500*time.Millisecond, 200, "")
			return nil, errors.Join(err, errors.New("refused"))
		})
	}, func(t *testing.T, p *scrape.Poller) {
		time.Sleep(12250 * time.Millisecond)
		require.Equal(t, seconds(0, 1.5, 4, 8.5), since(start, began.of("a")))
		time.Sleep(5 * time.Second) // the fifth begins at 17
		f.set(scrape.Target{ID: "a", URL: "http://new/metrics"})
		p.Sync()
		time.Sleep(2 * time.Second)
		assert.Equal(t, seconds(18, 19), since(start, began.of("new")))
	})
}

// An endpoint that is removed while it waits for a place is not polled any more.
func TestRemovedWhileWaiting(t *testing.T) {
	f, began := newFleet("a", "b"), &starts{}
	bubble(t, func() scrape.Config {
		c := clockless(f, &recorder{}, func(req *http.Request) (*http.Response, error) {
			began.add(req)
			return hang(req)
		})
		c.MaxConcurrent = 1
		return c
	}, func(t *testing.T, p *scrape.Poller) {
		require.Len(t, slices.Concat(began.of("a"), began.of("b")), 1)
		first, other := "a", "b"
		if len(began.of("a")) == 0 {
			first, other = other, first
		}
		f.set(target(first, ""))
		p.Sync()
		time.Sleep(time.Minute)
		assert.Empty(t, began.of(other))
	})
}

// However rare polls are, nothing keeps what has been removed.
func TestRemovedIsForgotten(t *testing.T) {
	f := newFleet()
	bubble(t, func() scrape.Config {
		c := clockless(f, &recorder{}, func(req *http.Request) (*http.Response, error) { return after(req, 0, 200, "1") })
		c.Every = time.Hour
		return c
	}, func(t *testing.T, p *scrape.Poller) {
		watch := func() weak.Pointer[[1 << 10]byte] {
			held := new([1 << 10]byte)
			a := target("a", "")
			a.Parse = func(r io.Reader, at time.Time) (telemetry.Snapshot, error) {
				held[0]++
				return parse(r, at)
			}
			f.set(a)
			return weak.Make(held)
		}()
		p.Sync()
		synctest.Wait()
		assert.EqualValues(t, 1, p.Stats().Successes)
		runtime.GC()
		require.NotNil(t, watch.Value())
		f.set()
		p.Sync()
		synctest.Wait()
		for range 3 {
			runtime.GC()
		}
		assert.Nil(t, watch.Value())
	})
}

// A list that takes long to make is made seldom; answers wait for it together. Those still waiting when Run ends are
// thrown away.
func TestSlowTargets(t *testing.T) {
	var ids []string
	for i := range 100 {
		ids = append(ids, fmt.Sprintf("e%02d", i))
	}
	f, sink := newFleet(ids...), &recorder{}
	var asked atomic.Int64
	bubble(t, func() scrape.Config {
		c := clockless(f, sink, func(req *http.Request) (*http.Response, error) { return after(req, time.Millisecond, 200, "1") })
		c.Jitter = 0
		c.Targets = func() []scrape.Target {
			asked.Add(1)
			time.Sleep(100 * time.Microsecond)
			return f.targets()
		}
		return c
	}, func(t *testing.T, p *scrape.Poller) {
		time.Sleep(10 * time.Second)
		assert.InDelta(t, 1000, len(sink.all()), 60)
		assert.Less(t, asked.Load(), int64(1000), "1 %% of the time")
		assert.Greater(t, asked.Load(), int64(400))
		for _, c := range sink.all() {
			require.LessOrEqual(t, c.at.Sub(c.snapshot.ObservedAt), 12*time.Millisecond)
		}
	})
	bubble(t, func() scrape.Config {
		c := clockless(newFleet("a"), sink, func(req *http.Request) (*http.Response, error) { return after(req, time.Millisecond, 200, "1") })
		list := c.Targets
		c.Targets = func() []scrape.Target { time.Sleep(time.Second); return list() }
		return c
	}, func(t *testing.T, p *scrape.Poller) {
		n := len(sink.all())
		time.Sleep(1010 * time.Millisecond)
		s := p.Stats()
		assert.Equal(t, 1, s.InFlight, "not delivered yet")
		assert.Len(t, sink.all(), n)
	})
}
