package scrape_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/scrape"
)

// transport is an http.RoundTripper without a network.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func (f transport) client() *http.Client { return &http.Client{Transport: f} }

func response(req *http.Request, status int, body string, header ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &http.Response{
		StatusCode: status, Header: h, Request: req, ContentLength: -1, Body: io.NopCloser(strings.NewReader(body)),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
}

// after answers when the time has passed, unless the poll ends before.
func after(req *http.Request, d time.Duration, status int, body string) (*http.Response, error) {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
	return response(req, status, body), nil
}

// hang never answers.
func hang(req *http.Request) (*http.Response, error) {
	<-req.Context().Done()
	return nil, req.Context().Err()
}

// parse reads a document that is one number, the running requests.
func parse(body io.Reader, at time.Time) (telemetry.Snapshot, error) {
	text, err := io.ReadAll(body)
	if err != nil {
		return telemetry.Snapshot{}, err
	}
	var n float64
	if _, err := fmt.Sscan(string(text), &n); err != nil {
		return telemetry.Snapshot{}, errors.New("no number")
	}
	return telemetry.Snapshot{ObservedAt: at, Running: telemetry.V(n)}, nil
}

// told is one call of a sink.
type told struct {
	id       string
	at       time.Time
	snapshot telemetry.Snapshot
	err      error
}

func (c told) running() float64 {
	n, _ := c.snapshot.Running.Value()
	return n
}

// recorder is a sink that remembers.
type recorder struct {
	mu    sync.Mutex
	calls []told
	check func(told) error // its error is that of Observe; nil = none
}

func (r *recorder) Observe(id string, s telemetry.Snapshot) error {
	return r.add(told{id: id, at: time.Now(), snapshot: s})
}

func (r *recorder) ScrapeFailed(id string, cause error) error {
	return r.add(told{id: id, at: time.Now(), err: cause})
}

func (r *recorder) add(c told) error {
	r.mu.Lock()
	r.calls = append(r.calls, c)
	check := r.check
	r.mu.Unlock()
	if check != nil {
		return check(c)
	}
	return nil
}

func (r *recorder) all() []told {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]told(nil), r.calls...)
}

func (r *recorder) of(id string) []told {
	var out []told
	for _, c := range r.all() {
		if c.id == id {
			out = append(out, c)
		}
	}
	return out
}

// fleet is a list of targets that changes.
type fleet struct {
	mu   sync.Mutex
	list []scrape.Target
}

func newFleet(ids ...string) *fleet {
	f := &fleet{}
	for _, id := range ids {
		f.list = append(f.list, target(id, ""))
	}
	return f
}

func target(id, incarnation string) scrape.Target {
	return scrape.Target{ID: id, Incarnation: incarnation, URL: "http://" + id + "/metrics"}
}

func (f *fleet) targets() []scrape.Target {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]scrape.Target(nil), f.list...)
}

func (f *fleet) set(list ...scrape.Target) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = list
}

// clockless is a configuration in which nothing is left to chance, one poll a second.
func clockless(f *fleet, sink scrape.Sink, engine transport) scrape.Config {
	return scrape.Config{
		Targets: f.targets, Sink: sink, Client: engine.client(), Parse: parse,
		Every: time.Second, Jitter: scrape.None,
	}
}

// bubble runs a poller in fake time, beside what the test does, and ends it.
func bubble(t *testing.T, cfg func() scrape.Config, test func(*testing.T, *scrape.Poller)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p, err := scrape.New(cfg())
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- p.Run(ctx) }()
		synctest.Wait()
		test(t, p)
		cancel()
		require.NoError(t, <-stopped)
		s := p.Stats()
		require.Zero(t, s.InFlight)
		require.Equal(t, s.Polls, s.Successes+s.Failures+s.Abandoned)
	})
}

// since turns times into what had passed since the bubble began.
func since(start time.Time, times []time.Time) []time.Duration {
	var out []time.Duration
	for _, at := range times {
		out = append(out, at.Sub(start))
	}
	return out
}

// starts remembers when polls reached an engine.
type starts struct {
	mu sync.Mutex
	at map[string][]time.Time // by host
}

func (s *starts) add(req *http.Request) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		s.at = map[string][]time.Time{}
	}
	s.at[req.URL.Host] = append(s.at[req.URL.Host], time.Now())
	return len(s.at[req.URL.Host])
}

func (s *starts) of(host string) []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Time(nil), s.at[host]...)
}

func seconds(values ...float64) []time.Duration {
	var out []time.Duration
	for _, v := range values {
		out = append(out, time.Duration(v*float64(time.Second)))
	}
	return out
}
