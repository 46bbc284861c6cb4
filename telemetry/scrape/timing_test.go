package scrape_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/scrape"
)

func TestObservedWhenSent(t *testing.T) {
	sink := &recorder{}
	var start time.Time
	bubble(t, func() scrape.Config {
		start = time.Now()
		return clockless(newFleet("a"), sink, func(req *http.Request) (*http.Response, error) {
			return after(req, 700*time.Millisecond, 200, "7")
		})
	}, func(t *testing.T, p *scrape.Poller) {
		time.Sleep(1900 * time.Millisecond)
		calls := sink.of("a")
		require.Len(t, calls, 2)
		for i, want := range []time.Duration{0, time.Second} {
			assert.Equal(t, want, calls[i].snapshot.ObservedAt.Sub(start), "sent")
			assert.Equal(t, want+700*time.Millisecond, calls[i].at.Sub(start), "delivered")
			assert.EqualValues(t, 7, calls[i].running())
			assert.Equal(t, "scrape", calls[i].snapshot.Source)
			assert.Equal(t, time.Second, calls[i].snapshot.Interval, "how often it is polled")
		}
		s, ok := p.Endpoint("a")
		require.True(t, ok)
		assert.Equal(t, 900*time.Millisecond, s.Age, "from the sending")
		assert.Equal(t, 700*time.Millisecond, s.MeanDuration)
	})
}

// A parser cannot make a snapshot younger than its poll, or give it no time, which would mean now.
func TestObservedNeverLater(t *testing.T) {
	early, late := -time.Minute, time.Minute
	for _, tc := range []struct {
		shift *time.Duration // nil = no time at all
		want  time.Duration
	}{{nil, 0}, {&late, 0}, {&early, early}} {
		sink := &recorder{}
		var start time.Time
		bubble(t, func() scrape.Config {
			start = time.Now()
			c := clockless(newFleet("a"), sink, func(req *http.Request) (*http.Response, error) {
				return after(req, time.Millisecond, 200, "7")
			})
			f := newFleet("a")
			f.list[0].Parse = func(r io.Reader, at time.Time) (telemetry.Snapshot, error) {
				s, err := parse(r, at)
				s.Source, s.ObservedAt = "own", time.Time{}
				if tc.shift != nil {
					s.ObservedAt = at.Add(*tc.shift)
				}
				return s, err
			}
			c.Targets, c.Parse = f.targets, nil
			return c
		}, func(t *testing.T, _ *scrape.Poller) {
			time.Sleep(10 * time.Millisecond)
			calls := sink.all()
			require.Len(t, calls, 1)
			assert.Equal(t, tc.want, calls[0].snapshot.ObservedAt.Sub(start))
			assert.Equal(t, "own", calls[0].snapshot.Source)
		})
	}
}

// Nor can it make single readings younger.
func TestReadingsObservedNeverLater(t *testing.T) {
	sink := &recorder{}
	var start time.Time
	var own []telemetry.Rank
	bubble(t, func() scrape.Config {
		start = time.Now()
		c := clockless(newFleet("a"), sink, func(req *http.Request) (*http.Response, error) { return after(req, time.Millisecond, 200, "7") })
		c.Parse = func(_ io.Reader, at time.Time) (telemetry.Snapshot, error) {
			late, early := telemetry.At(5, at.Add(time.Second)), telemetry.At(6, at.Add(-time.Second))
			own = []telemetry.Rank{{ID: 1, Running: early}, {ID: 2, MaxRunning: late}}
			return telemetry.Snapshot{Running: late, Waiting: early, PrefixHitRate: telemetry.V(1), Ranks: own}, nil
		}
		return c
	}, func(t *testing.T, _ *scrape.Poller) {
		time.Sleep(10 * time.Millisecond)
		s := sink.all()[0].snapshot
		assert.Equal(t, telemetry.At(5, start), s.Running)
		assert.Equal(t, telemetry.At(6, start.Add(-time.Second)), s.Waiting)
		assert.Equal(t, telemetry.V(1), s.PrefixHitRate)
		assert.Equal(t, telemetry.Reading{}, s.KVUsed)
		assert.Equal(t, telemetry.At(6, start.Add(-time.Second)), s.Ranks[0].Running)
		assert.Equal(t, telemetry.At(5, start), s.Ranks[1].MaxRunning)
		assert.Equal(t, telemetry.At(5, start.Add(time.Second)), own[1].MaxRunning, "the parser's own list")
	})
}

func TestInjectedClock(t *testing.T) {
	sink := &recorder{}
	var now func() time.Time
	bubble(t, func() scrape.Config {
		start, ours := time.Now(), time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
		now = func() time.Time { return ours.Add(time.Since(start)) }
		c := clockless(newFleet("a"), sink, func(req *http.Request) (*http.Response, error) {
			return after(req, 10*time.Millisecond, 200, "7")
		})
		c.Now = now
		return c
	}, func(t *testing.T, p *scrape.Poller) {
		time.Sleep(1500 * time.Millisecond)
		calls := sink.all()
		require.Len(t, calls, 2)
		assert.Equal(t, now().Add(-500*time.Millisecond), calls[1].snapshot.ObservedAt)
		s := p.Stats()
		assert.Equal(t, now(), s.At)
		assert.Equal(t, 500*time.Millisecond, s.Endpoints[0].Age)
		assert.Equal(t, 10*time.Millisecond, s.Endpoints[0].LastDuration)
	})
}

// Quick engines are polled on the second, whatever others do; a slow one is polled once at a time, and the ticks that its
// answers run into are skipped.
func TestSlowAndDeadDelayNobody(t *testing.T) {
	var ids []string
	for i := range 20 {
		ids = append(ids, fmt.Sprintf("quick%02d", i))
	}
	ids = append(ids, "slow", "dead")
	sink, began := &recorder{}, &starts{}
	var start time.Time
	var slow atomic.Int32
	bubble(t, func() scrape.Config {
		start = time.Now()
		return clockless(newFleet(ids...), sink, func(req *http.Request) (*http.Response, error) {
			began.add(req)
			switch req.URL.Host {
			case "dead":
				return hang(req)
			case "slow":
				if slow.Add(1) > 1 {
					return nil, errors.New("two polls at once")
				}
				defer slow.Add(-1)
				return after(req, 1500*time.Millisecond, 200, "1")
			}
			return after(req, 5*time.Millisecond, 200, "2")
		})
	}, func(t *testing.T, p *scrape.Poller) {
		time.Sleep(9500 * time.Millisecond)
		for _, id := range ids[:20] {
			require.Equal(t, seconds(0, 1, 2, 3, 4, 5, 6, 7, 8, 9), since(start, began.of(id)), id)
			require.Len(t, sink.of(id), 10)
		}
		assert.Equal(t, seconds(0, 2, 4, 6, 8), since(start, began.of("slow")))
		// Timeout 2 s, then 1, 2, 4 s of back-off.
		assert.Equal(t, seconds(0, 3, 7), since(start, began.of("dead")))
		for _, c := range sink.of("dead") {
			var failure *scrape.Error
			require.ErrorAs(t, c.err, &failure)
			assert.Equal(t, scrape.ReasonTimeout, failure.Reason)
			assert.ErrorIs(t, c.err, context.DeadlineExceeded)
			assert.EqualError(t, c.err, `scrape: endpoint "dead": timeout: context deadline exceeded`)
		}
		s, _ := p.Endpoint("dead")
		assert.Equal(t, 3, s.ConsecutiveFailures)
		assert.Equal(t, 4*time.Second, s.Backoff)
		assert.Negative(t, s.Age)
		assert.Equal(t, 2*time.Second, s.MaxDuration)
	})
}

func TestBackoffAndRecovery(t *testing.T) {
	sink, began := &recorder{}, &starts{}
	var start time.Time
	bubble(t, func() scrape.Config {
		start = time.Now()
		c := clockless(newFleet("a"), sink, func(req *http.Request) (*http.Response, error) {
			if n := began.add(req); n <= 7 || n == 10 {
				return nil, errors.New("refused")
			}
			return after(req, 0, 200, "3")
		})
		return c
	}, func(t *testing.T, p *scrape.Poller) {
		time.Sleep(40 * time.Second)
		assert.Equal(t, seconds(0, 1, 3, 7, 15, 25, 35, 45)[:7], since(start, began.of("a")))
		s, _ := p.Endpoint("a")
		assert.Equal(t, 7, s.ConsecutiveFailures)
		assert.Equal(t, 10*time.Second, s.Backoff)
		time.Sleep(10500 * time.Millisecond)
		// Good at 45, 46, bad at 47, and 1 s later, not 10.
		assert.Equal(t, seconds(45, 46, 47, 48, 49, 50), since(start, began.of("a"))[7:])
		s, _ = p.Endpoint("a")
		assert.Zero(t, s.ConsecutiveFailures)
		assert.Zero(t, s.Backoff)
		assert.EqualValues(t, 8, s.Failures)
		assert.Equal(t, scrape.ReasonConnection, s.Reason, "the last reason stays")
		assert.Equal(t, `scrape: endpoint "a": connection: refused`, s.Error)
		assert.Equal(t, 47*time.Second, s.LastFailure.Sub(start))
		assert.Equal(t, 50*time.Second, s.LastSuccess.Sub(start))
		for _, c := range sink.all() {
			if c.err != nil {
				assert.Equal(t, telemetry.Snapshot{}, c.snapshot)
			}
		}
	})
}

// The goroutine of Run stands still for ten seconds, as a whole process may. Nobody is polled more than once in the
// second that follows, and not all at the same time.
func TestNoBurstAfterStall(t *testing.T) {
	var ids []string
	for i := range 50 {
		ids = append(ids, fmt.Sprintf("e%02d", i))
	}
	f, sink, began := newFleet(ids...), &recorder{}, &starts{}
	var stall atomic.Bool
	bubble(t, func() scrape.Config {
		c := clockless(f, sink, func(req *http.Request) (*http.Response, error) {
			began.add(req)
			return after(req, time.Millisecond, 200, "3")
		})
		c.Jitter = 0.1
		c.Targets = func() []scrape.Target {
			if stall.CompareAndSwap(true, false) {
				time.Sleep(10 * time.Second)
			}
			return f.targets()
		}
		return c
	}, func(t *testing.T, p *scrape.Poller) {
		time.Sleep(20 * time.Second)
		before := map[string]int{}
		for _, id := range ids {
			before[id] = len(began.of(id))
		}
		asleep := time.Now()
		stall.Store(true)
		time.Sleep(11 * time.Second)
		// The stall began at the next answer of anybody and has ended between 10 and 11 s later.
		var woken []time.Time
		for _, id := range ids {
			for _, at := range began.of(id)[before[id]:] {
				if at.Sub(asleep) > 9*time.Second {
					woken = append(woken, at)
				}
			}
		}
		slices.SortFunc(woken, time.Time.Compare)
		require.NotEmpty(t, woken)
		window := 0
		for i, at := range woken {
			n := 0
			for _, other := range woken[i:] {
				if other.Sub(at) <= 50*time.Millisecond {
					n++
				}
			}
			window = max(window, n)
		}
		assert.Less(t, window, 15, "of 50 within 50 ms")
		time.Sleep(5 * time.Second)
		for _, id := range ids {
			times := began.of(id)[before[id]-1:]
			for i := 1; i < len(times); i++ {
				assert.GreaterOrEqual(t, times[i].Sub(times[i-1]), 900*time.Millisecond, id)
			}
			assert.GreaterOrEqual(t, len(times), 5, "polled again, %s", id)
			assert.LessOrEqual(t, len(times), 8, "not made up for, %s", id)
		}
		assert.Positive(t, p.Stats().Skipped)
		assert.LessOrEqual(t, p.Stats().Skipped, uint64(50))
	})
}

// A loop that always wakes too late polls every second tick, and not never.
func TestAlwaysLate(t *testing.T) {
	f, sink := newFleet("a"), &recorder{}
	bubble(t, func() scrape.Config {
		c := clockless(f, sink, func(req *http.Request) (*http.Response, error) { return after(req, 0, 200, "3") })
		c.Every = 10 * time.Millisecond
		c.Targets = func() []scrape.Target { time.Sleep(17 * time.Millisecond); return f.targets() }
		return c
	}, func(t *testing.T, _ *scrape.Poller) {
		time.Sleep(10 * time.Second)
		assert.Greater(t, len(sink.all()), 100)
	})
}

func TestJitterBySeed(t *testing.T) {
	var ids []string
	for i := range 30 {
		ids = append(ids, fmt.Sprintf("e%02d", i))
	}
	run := func(seed uint64, order []string) map[string][]time.Duration {
		out := map[string][]time.Duration{}
		began := &starts{}
		var start time.Time
		bubble(t, func() scrape.Config {
			start = time.Now()
			c := clockless(newFleet(order...), &recorder{}, func(req *http.Request) (*http.Response, error) {
				began.add(req)
				return after(req, time.Millisecond, 200, "3")
			})
			c.Jitter, c.Seed = 0, seed
			return c
		}, func(*testing.T, *scrape.Poller) { time.Sleep(12 * time.Second) })
		for _, id := range ids {
			out[id] = since(start, began.of(id))
		}
		return out
	}
	one := run(1, ids)
	turned := slices.Clone(ids)
	slices.Reverse(turned)
	assert.Equal(t, one, run(1, turned), "same seed, other order")
	assert.NotEqual(t, one, run(2, ids))
	var phases [4]int // of the third poll, in quarters of a second
	for _, times := range one {
		assert.Less(t, times[0], 100*time.Millisecond, "the first poll comes soon")
		phases[times[2]%time.Second/(250*time.Millisecond)]++
		for i := 2; i < len(times); i++ {
			assert.InDelta(t, 1, (times[i] - times[i-1]).Seconds(), 0.1001)
		}
	}
	for q, n := range phases {
		assert.Positive(t, n, "quarter %d: %v", q, phases)
	}
}

// With four places, ten dead engines take two at most: the others get on, and the dead ones are still asked now and then.
func TestMaxConcurrent(t *testing.T) {
	var ids []string
	for i := range 20 {
		ids = append(ids, fmt.Sprintf("live%02d", i))
	}
	for i := range 10 {
		ids = append(ids, fmt.Sprintf("dead%02d", i))
	}
	var now, peak atomic.Int32
	began := &starts{}
	bubble(t, func() scrape.Config {
		c := clockless(newFleet(ids...), &recorder{}, func(req *http.Request) (*http.Response, error) {
			began.add(req)
			defer now.Add(-1)
			n := now.Add(1)
			for old := peak.Load(); n > old && !peak.CompareAndSwap(old, n); old = peak.Load() {
			}
			if req.URL.Host[:4] == "dead" {
				return hang(req)
			}
			return after(req, 20*time.Millisecond, 200, "3")
		})
		c.MaxConcurrent = 4
		return c
	}, func(t *testing.T, p *scrape.Poller) {
		time.Sleep(10 * time.Second) // until every dead one has failed once
		counts := map[string]int{}
		for _, id := range ids {
			counts[id] = len(began.of(id))
		}
		time.Sleep(60 * time.Second)
		assert.EqualValues(t, 4, peak.Load())
		for _, id := range ids {
			n := len(began.of(id)) - counts[id]
			if id[:4] == "live" {
				assert.GreaterOrEqual(t, n, 55, id)
			} else {
				assert.Positive(t, n, id)
			}
		}
	})
}

// Places that are all taken by failed endpoints would be lost; one place must not be.
func TestOnePlace(t *testing.T) {
	sink := &recorder{}
	bubble(t, func() scrape.Config {
		c := clockless(newFleet("dead", "live"), sink, func(req *http.Request) (*http.Response, error) {
			if req.URL.Host == "dead" {
				return hang(req)
			}
			return after(req, 0, 200, "3")
		})
		c.MaxConcurrent = 1
		return c
	}, func(t *testing.T, _ *scrape.Poller) {
		time.Sleep(60 * time.Second)
		assert.Greater(t, len(sink.of("dead")), 3)
		assert.Greater(t, len(sink.of("live")), 30)
	})
}

func TestSlowSinkHoldsUpItsOwnOnly(t *testing.T) {
	sink := &recorder{check: func(c told) error {
		if c.id == "a" {
			time.Sleep(3 * time.Second)
		}
		return nil
	}}
	bubble(t, func() scrape.Config {
		return clockless(newFleet("a", "b"), sink, func(req *http.Request) (*http.Response, error) { return after(req, 0, 200, "3") })
	}, func(t *testing.T, p *scrape.Poller) {
		time.Sleep(9500 * time.Millisecond)
		assert.Len(t, sink.of("a"), 3)
		assert.Len(t, sink.of("b"), 10)
		assert.Equal(t, 1, p.Stats().InFlight)
	})
}

func TestSinkRefuses(t *testing.T) {
	refused := errors.New("unknown endpoint")
	sink := &recorder{check: func(told) error { return refused }}
	bubble(t, func() scrape.Config {
		return clockless(newFleet("a"), sink, func(req *http.Request) (*http.Response, error) { return after(req, 0, 200, "3") })
	}, func(t *testing.T, p *scrape.Poller) {
		time.Sleep(3500 * time.Millisecond)
		s, _ := p.Endpoint("a")
		assert.Equal(t, scrape.ReasonSink, s.Reason)
		assert.Equal(t, `scrape: endpoint "a": sink: unknown endpoint`, s.Error)
		assert.Equal(t, 3, s.ConsecutiveFailures)
		for _, c := range sink.all() {
			assert.NoError(t, c.err, "it is not told of its own refusal")
		}
	})
}

// What is under way when the context ends is no failure of an engine.
func TestStop(t *testing.T) {
	sink := &recorder{}
	synctest.Test(t, func(t *testing.T) {
		p, err := scrape.New(clockless(newFleet("a", "b", "c"), sink, hang))
		require.NoError(t, err)
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			var runs sync.WaitGroup
			runs.Go(func() { assert.NoError(t, p.Run(ctx)) })
			synctest.Wait()
			assert.ErrorIs(t, p.Run(ctx), scrape.ErrRunning)
			runs.Wait()
			cancel()
		}
		assert.Empty(t, sink.all())
		s := p.Stats()
		assert.Equal(t, scrape.Totals{Polls: 6, Abandoned: 6}, s.Totals)
		require.Len(t, s.Endpoints, 3, "readable after the end")
		assert.False(t, s.Endpoints[0].Polling)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		assert.NoError(t, p.Run(ended))
	})
}
