package scrape_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/engine"
	"github.com/isobar-go/isobar/telemetry/scrape"
)

func enginePrinter(kind engine.Kind) engine.Parser { return engine.Parser{Kind: kind} }

const (
	vllmDocument   = "vllm:num_requests_running 3\nvllm:num_requests_waiting 1\nvllm:generation_tokens_total 50\n"
	vllmRestarted  = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:generation_tokens_total 2\n"
	sglangDocument = "sglang:num_running_reqs 5\nsglang:num_queue_reqs 2\n"
	foreign        = "node_load1 0.3\n"
)

// The kind is recognised from the first document, kept while documents fit, and shown.
func TestKindDetected(t *testing.T) {
	for _, tc := range []struct {
		given     engine.Kind
		documents []string // in the order of the polls
		running   []float64
		kind      engine.Kind // at the end
	}{
		{"", []string{vllmDocument, vllmDocument}, []float64{3, 3}, engine.VLLM},
		{"", []string{sglangDocument, sglangDocument}, []float64{5, 5}, engine.SGLang},
		{"", []string{foreign, sglangDocument}, []float64{-1, 5}, engine.SGLang},
		{"", []string{vllmDocument, sglangDocument, sglangDocument}, []float64{3, -1, 5}, engine.SGLang},
		{engine.VLLM, []string{vllmDocument, sglangDocument, sglangDocument}, []float64{3, -1, -1}, engine.VLLM},
	} {
		f, sink, began := newFleet(), &recorder{}, &starts{}
		f.set(scrape.Target{ID: "a", URL: "http://a/", Engine: enginePrinter(tc.given)})
		bubble(t, func() scrape.Config {
			c := clockless(f, sink, func(req *http.Request) (*http.Response, error) {
				n := min(began.add(req), len(tc.documents))
				return response(req, 200, tc.documents[n-1]), nil
			})
			c.Parse, c.MaxBackoff = nil, scrape.None
			return c
		}, func(t *testing.T, p *scrape.Poller) {
			time.Sleep(time.Duration(len(tc.documents))*time.Second - 500*time.Millisecond)
			calls := sink.all()
			require.Len(t, calls, len(tc.running))
			for i, want := range tc.running {
				if want < 0 {
					var failure *scrape.Error
					require.ErrorAs(t, calls[i].err, &failure)
					assert.Equal(t, scrape.ReasonParse, failure.Reason)
					continue
				}
				require.NoError(t, calls[i].err)
				if n := len(calls[i].snapshot.Ranks); n > 0 {
					got, _ := calls[i].snapshot.Ranks[0].Running.Value()
					assert.Equal(t, want, got)
				} else {
					assert.Equal(t, want, calls[i].running())
				}
			}
			s, _ := p.Endpoint("a")
			assert.Equal(t, tc.kind, s.Kind)
		})
	}
}

// A restart in place shows as another epoch, where counters go back.
func TestRestartShows(t *testing.T) {
	sink := &recorder{}
	var restarted atomic.Bool
	bubble(t, func() scrape.Config {
		c := clockless(newFleet("a"), sink, func(req *http.Request) (*http.Response, error) {
			if restarted.Load() {
				return response(req, 200, vllmRestarted), nil
			}
			return response(req, 200, vllmDocument), nil
		})
		c.Parse = nil
		return c
	}, func(t *testing.T, _ *scrape.Poller) {
		time.Sleep(1500 * time.Millisecond)
		restarted.Store(true)
		time.Sleep(2 * time.Second)
		calls := sink.all()
		require.Len(t, calls, 4)
		assert.NotEmpty(t, calls[0].snapshot.Epoch)
		assert.Equal(t, calls[0].snapshot.Epoch, calls[1].snapshot.Epoch)
		assert.NotEqual(t, calls[1].snapshot.Epoch, calls[2].snapshot.Epoch)
		assert.Equal(t, calls[2].snapshot.Epoch, calls[3].snapshot.Epoch)
	})
}

// An engine is not taken to have restarted once more because its Engine is another one now, because the clock went back or
// because Run was called again; and a restart shows all the same.
func TestRestartsAreCountedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, sink := newFleet("a"), &recorder{}
		var tokens, back atomic.Int64
		tokens.Store(50)
		c := clockless(f, sink, func(req *http.Request) (*http.Response, error) {
			return response(req, 200, fmt.Sprintf("vllm:num_requests_running 3\nvllm:generation_tokens_total %d\n", tokens.Add(1))), nil
		})
		c.Parse, c.Now = nil, func() time.Time { return time.Now().Add(-time.Duration(back.Load())) }
		p, err := scrape.New(c)
		require.NoError(t, err)
		run := func(during func()) {
			ctx, cancel := context.WithCancel(t.Context())
			stopped := make(chan error, 1)
			go func() { stopped <- p.Run(ctx) }()
			time.Sleep(1500 * time.Millisecond)
			during()
			time.Sleep(2 * time.Second)
			cancel()
			require.NoError(t, <-stopped)
		}
		epochs := func() (out []string) {
			for _, c := range sink.all() {
				if n := len(out); n == 0 || out[n-1] != c.snapshot.Epoch {
					out = append(out, c.snapshot.Epoch)
				}
			}
			return out
		}
		run(func() { tokens.Store(0) })
		require.Equal(t, []string{"life-1", "life-2"}, epochs())
		run(func() { f.set(scrape.Target{ID: "a", URL: "http://a/", Engine: enginePrinter(engine.VLLM)}) })
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, p.Run(ended))
		run(func() { back.Store(int64(time.Hour)) })
		require.Equal(t, []string{"life-1", "life-2"}, epochs())
		run(func() { tokens.Store(0) })
		require.Equal(t, []string{"life-1", "life-2", "life-3"}, epochs())
		calls := sink.all()
		require.True(t, calls[len(calls)-1].snapshot.ObservedAt.Before(calls[0].snapshot.ObservedAt), "the time is the clock's")
		f.set(target("a", "another"))
		run(func() {})
		require.Equal(t, []string{"life-1", "life-2", "life-3", "life-1"}, epochs())
	})
}

// Another Engine, and then another Parse, in the same life is taken over.
func TestEngineChanges(t *testing.T) {
	f, sink := newFleet(), &recorder{}
	f.set(scrape.Target{ID: "a", URL: "http://a/", Engine: enginePrinter(engine.VLLM)})
	bubble(t, func() scrape.Config {
		c := clockless(f, sink, func(req *http.Request) (*http.Response, error) { return response(req, 200, sglangDocument), nil })
		c.Parse = nil
		return c
	}, func(t *testing.T, p *scrape.Poller) {
		time.Sleep(500 * time.Millisecond)
		f.set(scrape.Target{ID: "a", URL: "http://a/", Engine: enginePrinter(engine.SGLang)})
		p.Sync()
		time.Sleep(time.Second)
		calls := sink.all()
		require.Len(t, calls, 2)
		assert.Error(t, calls[0].err)
		assert.NoError(t, calls[1].err)
		f.set(scrape.Target{ID: "a", URL: "http://a/", Parse: func(io.Reader, time.Time) (telemetry.Snapshot, error) {
			return telemetry.Snapshot{Source: "other"}, nil
		}})
		time.Sleep(2 * time.Second)
		calls = sink.all()
		assert.Equal(t, "other", calls[len(calls)-1].snapshot.Source)
	})
}

// MaxBytes bounds documents also where package engine reads them, above its own default too; what its parser refuses for
// its size is called that.
func TestSizeOfEngineDocuments(t *testing.T) {
	filler := "# " + strings.Repeat("x", 1<<20) + "\n"
	for _, tc := range []struct {
		name              string
		size              int // MiB of filler
		maxBytes, engines int64
		want              scrape.Reason
	}{
		{"default", 7, 0, 0, scrape.ReasonNone},
		{"above the default", 9, 0, 0, scrape.ReasonTooLarge},
		{"raised", 9, 16 << 20, 0, scrape.ReasonNone},
		{"above what was raised", 17, 16 << 20, 0, scrape.ReasonTooLarge},
		{"the engine's own", 2, 16 << 20, 1 << 20, scrape.ReasonTooLarge},
	} {
		for _, kind := range []engine.Kind{"", engine.VLLM} {
			f := newFleet("a")
			f.list[0].Engine = engine.Parser{Kind: kind, MaxBytes: tc.engines}
			bubble(t, func() scrape.Config {
				c := clockless(f, &recorder{}, func(req *http.Request) (*http.Response, error) {
					return response(req, 200, strings.Repeat(filler, tc.size)+vllmDocument), nil
				})
				c.Parse, c.MaxBytes = nil, tc.maxBytes
				return c
			}, func(t *testing.T, p *scrape.Poller) {
				time.Sleep(500 * time.Millisecond)
				s, _ := p.Endpoint("a")
				assert.Equal(t, tc.want, s.Reason, "%s: %s", tc.name, s.Error)
				assert.Equal(t, tc.want == scrape.ReasonNone, s.Successes == 1, tc.name)
			})
		}
	}
}
