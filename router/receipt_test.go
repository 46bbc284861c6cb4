package router_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/router"
)

// keeper is an observer that keeps every receipt.
type keeper struct {
	mu             sync.Mutex
	decided, ended []*router.Receipt
}

func (k *keeper) Decided(r *router.Receipt) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.decided = append(k.decided, r)
}

func (k *keeper) Ended(r *router.Receipt) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = append(k.ended, r)
}

func TestOutcomeIsJoined(t *testing.T) {
	c, k := newClock(), &keeper{}
	p := newPool(t, c, router.Config{Receipts: router.Receipts{Observer: k}}, "a")
	idle(t, p, c, "a")
	l := mustReserve(t, p, router.Request{ID: "r1", PromptTokens: 1500, ExpectedOutputTokens: 40, Class: router.ClassBatch})
	require.Len(t, k.decided, 1)
	require.Nil(t, k.decided[0].Outcome)
	c.advance(20 * time.Millisecond)
	l.Started()
	c.advance(30 * time.Millisecond)
	l.FirstToken()
	c.advance(time.Second)
	l.Started() // only the first counts
	l.FirstToken()
	l.Progress(33)
	l.Progress(12)
	c.advance(time.Second)
	l.Done(router.Usage{PromptTokens: 1501, CachedTokens: 16, OutputTokens: 35})
	l.Fail(errors.New("late"))
	require.Len(t, k.ended, 1)
	r := k.ended[0]
	require.Equal(t, &router.OutcomeRecord{
		Cause: router.Completed, StartDelayMS: 20, FirstTokenMS: 50, CompletionMS: 2050, Tokens: 33,
		Usage: router.Usage{PromptTokens: 1501, CachedTokens: 16, OutputTokens: 35},
	}, r.Outcome)
	require.Nil(t, k.decided[0].Outcome, "the receipt that was shared is not written to")
	require.Equal(t, "r1", r.RequestID)
	require.Equal(t, router.ClassBatch, r.Class)
	require.EqualValues(t, 1024, r.SizeBucket)
	require.EqualValues(t, 1500, r.PromptTokens)
	require.EqualValues(t, 40, r.OutputTokens)
	require.Equal(t, "a", r.Endpoint)
	require.Equal(t, "pressure", r.Policy)
	require.Equal(t, k.decided[0].Config, r.Config)
	require.NotZero(t, r.Config)

	t.Run("a failure that never started", func(t *testing.T) {
		l := mustReserve(t, p, router.Request{})
		c.advance(time.Second)
		l.Fail(fmt.Errorf("dial: %w", io.ErrUnexpectedEOF))
		o := k.ended[1].Outcome
		require.Equal(t, &router.OutcomeRecord{Cause: router.Failed, ErrorType: "unexpected EOF", CompletionMS: 1000}, o)
		require.Zero(t, k.ended[1].SizeBucket, "unknown")
	})
	t.Run("tokens of the usage where none were counted", func(t *testing.T) {
		l := mustReserve(t, p, router.Request{})
		l.Done(router.Usage{OutputTokens: 5})
		require.EqualValues(t, 5, k.ended[2].Outcome.Tokens)
	})
	t.Run("progress implies the first token", func(t *testing.T) {
		l := mustReserve(t, p, router.Request{})
		c.advance(time.Millisecond)
		l.Progress(1)
		c.advance(time.Millisecond)
		l.Cancel()
		require.Equal(t, 1.0, k.ended[3].Outcome.FirstTokenMS)
		require.Equal(t, router.Cancelled, k.ended[3].Outcome.Cause)
	})
}

func TestConfigOfAReceipt(t *testing.T) {
	version := func(cfg router.Config) uint64 {
		k := &keeper{}
		cfg.Receipts.Observer = k
		p := newPool(t, newClock(), cfg, "a")
		mustReserve(t, p, router.Request{}).Cancel()
		return k.decided[0].Config
	}
	base := version(router.Config{})
	require.Equal(t, base, version(router.Config{TieWindow: time.Millisecond}), "equal in effect")
	for _, other := range []router.Config{
		{Seed: 1}, {Policy: router.Random()}, {Shadow: router.Random()}, {TieWindow: router.None}, {Caps: admission.Caps{Tenant: 1}},
	} {
		require.NotEqual(t, base, version(other))
	}
}

// Nothing that identifies a tenant, a session or a prompt, and no text of an error, may appear anywhere.
func TestNoSecrets(t *testing.T) {
	secrets := []string{"tenant-secret", "session-secret", "prompt-secret", "error-secret", "adapter-secret", "salt-secret"}
	var lines, logged bytes.Buffer
	j := router.NewJSONLines(&lines, 0)
	s := router.NewSlogObserver(slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug})), 0)
	var text strings.Builder
	c := newClock()
	p := newPool(t, c, router.Config{Receipts: router.Receipts{Observer: tee{j, s}}, Caps: admission.Caps{Tenant: 2}}, "a", "b")
	idle(t, p, c, "a", "b")
	scope, err := prefix.NewScope(prefix.Parts{Model: "m", Tenant: "tenant-secret", Salt: "salt-secret"})
	require.NoError(t, err)
	q, err := prefix.FromBytes(scope, 16, 4, bytes.Repeat([]byte("prompt-secret "), 30))
	require.NoError(t, err)
	req := router.Request{
		ID: "open", Tenant: "tenant-secret", Session: "session-secret", Prefix: q,
		Adapter: router.Adapter{ID: "adapter-secret", Digest: "adapter-secret-digest"},
	}
	a, b := mustReserve(t, p, req), mustReserve(t, p, req)
	reject := rejected(t, p, req, router.ErrSaturated)
	fmt.Fprintf(&text, "%v %+v %s", reject, reject.Decision, reject.Decision.Explain())
	d, err := p.Score(req)
	require.ErrorIs(t, err, router.ErrSaturated)
	fmt.Fprintf(&text, "%v %s %s", d, d.Explain(), err)
	a.Fail(errors.New("error-secret"))
	fmt.Fprintf(&text, "%+v", a.Decision())
	b.Done(router.Usage{})
	fmt.Fprintf(&text, "%+v", p.Stats())
	stats, err := json.Marshal(p.Stats())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, j.Run(ctx))
	require.NoError(t, s.Run(ctx))
	require.EqualValues(t, 3, j.Written())
	require.EqualValues(t, 3, s.Written())
	for _, secret := range secrets {
		for name, where := range map[string]string{"receipts": lines.String(), "log": logged.String(), "text": text.String(), "stats": string(stats)} {
			require.NotContains(t, where, secret, name)
		}
	}
	require.Contains(t, lines.String(), `"request_id":"open"`)
	require.Contains(t, lines.String(), `"tenant_hash":`)
	require.Contains(t, logged.String(), "rejected=saturated")
}

// tee tells several observers.
type tee []router.Observer

func (o tee) Decided(r *router.Receipt) {
	for _, x := range o {
		x.Decided(r)
	}
}

func (o tee) Ended(r *router.Receipt) {
	for _, x := range o {
		x.Ended(r)
	}
}

func TestSampling(t *testing.T) {
	pick := func(seed uint64, share float64) map[string]bool {
		k := &keeper{}
		p := newPool(t, newClock(), router.Config{Seed: seed, Receipts: router.Receipts{Sample: share, Observer: k}}, "a")
		for i := range 4000 {
			req := router.Request{ID: fmt.Sprint(i)}
			if i%10 == 0 {
				req.Model, req.Exclude, req.ExcludeHard = "m", []string{"a"}, true // rejected
				_, err := p.Reserve(context.Background(), req)
				require.Error(t, err)
				continue
			}
			mustReserve(t, p, req).Cancel()
			if i%3 == 0 {
				_ = scored(t, p, req) // draws nothing
			}
		}
		ids := map[string]bool{}
		ended := 0
		for _, r := range k.decided {
			ids[r.RequestID] = true
			if r.Rejected == "" {
				ended++
			}
			require.NotEmpty(t, r.Candidates)
		}
		require.Len(t, k.ended, ended)
		return ids
	}
	for _, share := range []float64{0.01, 0.3, 0.9} {
		ids := pick(1, share)
		sigma := math.Sqrt(4000 * share * (1 - share))
		require.InDelta(t, 4000*share, len(ids), 4*sigma)
		require.Equal(t, ids, pick(1, share), "deterministic by seed")
		require.NotEqual(t, ids, pick(2, share))
	}
	require.Len(t, pick(1, 1), 4000)
	require.Empty(t, pick(1, router.None))
	require.Len(t, pick(1, 0), 4000, "zero is all where there is an observer")
}

func TestUnsampledRequestsAllocateNoReceipt(t *testing.T) {
	if raceDetector {
		t.Skip("allocations cannot be counted")
	}
	allocs := func(o router.Observer, share float64) float64 {
		ids := strings.Split("abcdefghijklmnop", "")
		c := newClock()
		p := newPool(t, c, router.Config{Receipts: router.Receipts{Observer: o, Sample: share}}, ids...)
		idle(t, p, c, ids...)
		ctx := context.Background()
		return testing.AllocsPerRun(500, func() {
			l, err := p.Reserve(ctx, router.Request{PromptTokens: 100})
			if err != nil {
				t.Fatal(err)
			}
			l.Done(router.Usage{})
		})
	}
	none := allocs(nil, 0)
	require.Equal(t, none, allocs(nothing{}, router.None))
	require.LessOrEqual(t, allocs(nothing{}, 1e-9), none)
	require.Greater(t, allocs(nothing{}, 1), none)
}

type nothing struct{}

func (nothing) Decided(*router.Receipt) {}
func (nothing) Ended(*router.Receipt)   {}

// explosive is an observer that panics.
type explosive struct{}

func (explosive) Decided(*router.Receipt) { panic("decided") }
func (explosive) Ended(*router.Receipt)   { panic("ended") }

func TestObserverThatPanics(t *testing.T) {
	p := newPool(t, newClock(), router.Config{Receipts: router.Receipts{Observer: explosive{}}}, "a")
	l := mustReserve(t, p, router.Request{})
	l.Done(router.Usage{})
	rejected(t, p, router.Request{Exclude: []string{"a"}, ExcludeHard: true}, router.ErrNoEndpoints)
	s := p.Stats()
	require.EqualValues(t, 3, s.ObserverFaults)
	require.EqualValues(t, 1, s.Completed)
	require.Zero(t, s.OpenLeases)
	require.Zero(t, s.Endpoints[0].Own.Live)
}

// gate is a writer that blocks until it is opened, and tells that it was reached.
type gate struct {
	reached, open chan struct{}
	once          sync.Once
	buf           bytes.Buffer
}

func (g *gate) Write(b []byte) (int, error) {
	g.once.Do(func() { close(g.reached) })
	<-g.open
	return g.buf.Write(b)
}

func TestJSONLinesDropsWhatFindsNoRoom(t *testing.T) {
	g := &gate{reached: make(chan struct{}), open: make(chan struct{})}
	j := router.NewJSONLines(g, 4)
	p := newPool(t, newClock(), router.Config{Receipts: router.Receipts{Observer: j}}, "a")
	take := func(id int) { mustReserve(t, p, router.Request{ID: fmt.Sprint("r", id)}).Done(router.Usage{}) }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- j.Run(ctx) }()
	take(0)
	<-g.reached // in the writer's hands
	for i := range 10 {
		take(1 + i)
	}
	require.EqualValues(t, 6, j.Dropped())
	cancel()
	close(g.open)
	require.NoError(t, <-done)
	require.EqualValues(t, 5, j.Written())
	var ids []string
	for line := range strings.Lines(g.buf.String()) {
		var r router.Receipt
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		require.NotNil(t, r.Outcome, "only with its outcome")
		ids = append(ids, r.RequestID)
	}
	require.Equal(t, []string{"r0", "r1", "r2", "r3", "r4"}, ids)
}

func TestRunDrainsAndEnds(t *testing.T) {
	var out, logged bytes.Buffer
	j := router.NewJSONLines(&out, 0)
	s := router.NewSlogObserver(slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug})), -1)
	p := newPool(t, newClock(), router.Config{Receipts: router.Receipts{Observer: tee{j, s}}}, "a")
	for range 1100 {
		mustReserve(t, p, router.Request{}).Done(router.Usage{})
	}
	open := mustReserve(t, p, router.Request{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, j.Run(ctx))
	require.NoError(t, s.Run(ctx))
	require.EqualValues(t, 1024, j.Written())
	require.EqualValues(t, 76, j.Dropped())
	require.Equal(t, 1024, strings.Count(out.String(), "\n"))
	require.Equal(t, 1024, strings.Count(logged.String(), "cause=completed"))
	require.Equal(t, 1024, strings.Count(logged.String(), "level=DEBUG"))
	open.Cancel()
	require.NoError(t, j.Run(ctx), "it may be run again")
	require.EqualValues(t, 1025, j.Written())
}

type broken struct{ after int }

var errDisk = errors.New("disk full")

func (b *broken) Write(p []byte) (int, error) {
	if b.after--; b.after < 0 {
		return 0, errDisk
	}
	return len(p), nil
}

func TestRunEndsWithAWriteError(t *testing.T) {
	for _, cancelled := range []bool{false, true} {
		j := router.NewJSONLines(&broken{after: 2}, 8)
		p := newPool(t, newClock(), router.Config{Receipts: router.Receipts{Observer: j}}, "a")
		for range 5 {
			mustReserve(t, p, router.Request{}).Done(router.Usage{})
		}
		ctx, cancel := context.WithCancel(context.Background())
		if cancelled {
			cancel()
		}
		err := j.Run(ctx)
		cancel()
		require.ErrorIs(t, err, errDisk)
		require.ErrorContains(t, err, "router: ")
		require.EqualValues(t, 2, j.Written())
		require.EqualValues(t, 1, j.Dropped())
	}
}

// The prompt length of the size buckets are powers of two.
func TestSizeBuckets(t *testing.T) {
	k := &keeper{}
	p := newPool(t, newClock(), router.Config{Receipts: router.Receipts{Observer: k}}, "a")
	for tokens, want := range map[int64]int64{0: 0, 1: 1, 2: 2, 3: 2, 1023: 512, 1024: 1024, 2047: 1024, 2048: 2048} {
		mustReserve(t, p, router.Request{PromptTokens: tokens}).Cancel()
		require.Equal(t, want, k.ended[len(k.ended)-1].SizeBucket, "%d tokens", tokens)
	}
}
