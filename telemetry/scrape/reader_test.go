package scrape_test

import (
	"io"
	"net/http"
	"sync/atomic"
	"testing"
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
