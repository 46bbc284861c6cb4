package router_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// benchPool is a pool of n freshly observed endpoints and a hundred prompts of 2048 tokens, of which thirty are warm on some
// endpoint.
func benchPool(tb testing.TB, n int, cfg router.Config) (*router.Pool, []prefix.Sequence) {
	tb.Helper()
	p, err := router.New(cfg)
	require.NoError(tb, err)
	now := time.Now
	if cfg.Now != nil {
		now = cfg.Now
	}
	profile, err := score.ProfileByName("h100-8b")
	require.NoError(tb, err)
	var endpoints []router.Endpoint
	for i := range n {
		endpoints = append(endpoints, router.Endpoint{ID: fmt.Sprintf("engine-%03d", i), Profile: profile})
	}
	require.NoError(tb, p.SetEndpoints(endpoints))
	scope, err := prefix.NewScope(prefix.Parts{Model: "m"})
	require.NoError(tb, err)
	prompts := make([]prefix.Sequence, 100)
	for i := range prompts {
		tokens := make([]int32, 2048)
		for j := range tokens {
			tokens[j] = int32(i*4096 + j)
		}
		prompts[i], err = prefix.FromTokens(scope, 16, tokens)
		require.NoError(tb, err)
	}
	observeAll(tb, p, n, 0, now)
	for _, q := range prompts[:30] {
		l, err := p.Reserve(context.Background(), router.Request{Model: "m", Prefix: q, PromptTokens: 2048})
		require.NoError(tb, err)
		l.Done(router.Usage{})
	}
	// The other seventy are asked for under a scope in which nothing is ever recorded, so that they miss for ever.
	for i := range prompts[30:] {
		prompts[30+i] = prefix.Sequence{}
	}
	// Two rounds of polls bring the ledger's memory of ended leases to its steady size.
	for i := range 2 * pollEvery {
		l, err := p.Reserve(context.Background(), router.Request{Model: "m", Prefix: prompts[i%100], PromptTokens: 2048})
		require.NoError(tb, err)
		l.Done(router.Usage{})
		if i%pollEvery == 0 {
			observeAll(tb, p, n, i, now)
		}
	}
	return p, prompts
}

func observeAll(tb testing.TB, p *router.Pool, n, round int, now func() time.Time) {
	for i := range n {
		err := p.Observe(fmt.Sprintf("engine-%03d", i), telemetry.Snapshot{
			ObservedAt: now(), Running: telemetry.V(float64(4 + (i+round)%13)), Waiting: telemetry.V(float64(i % 3)),
			WaitingTokens: telemetry.V(float64(500 * (i % 3))), KVShare: telemetry.V(0.1 + float64(i%7)/20),
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// pollEvery is the number of decisions between two polls of the benchmarks: without any, the ledger would go on remembering
// every ended lease for the snapshots that might still come.
const pollEvery = 4096

func BenchmarkReserveRelease(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			p, prompts := benchPool(b, n, router.Config{Freshness: router.Freshness{FreshFor: time.Hour, StaleAfter: 2 * time.Hour, Decay: time.Hour}})
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				req := router.Request{Model: "m", Prefix: prompts[i%100], PromptTokens: 2048, ExpectedOutputTokens: 200}
				l, err := p.Reserve(context.Background(), req)
				if err != nil {
					b.Fatal(err)
				}
				l.Done(router.Usage{})
				if i++; i%pollEvery == 0 {
					observeAll(b, p, n, i, time.Now)
				}
			}
		})
	}
}

func BenchmarkReserveReleaseParallel(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			p, prompts := benchPool(b, n, router.Config{Freshness: router.Freshness{FreshFor: time.Hour, StaleAfter: 2 * time.Hour, Decay: time.Hour}})
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				i := 0
				for pb.Next() {
					req := router.Request{Model: "m", Prefix: prompts[i%100], PromptTokens: 2048, ExpectedOutputTokens: 200}
					l, err := p.Reserve(context.Background(), req)
					if err != nil {
						b.Error(err)
						return
					}
					l.Done(router.Usage{})
					if i++; i%pollEvery == 0 {
						observeAll(b, p, n, i, time.Now)
					}
				}
			})
		})
	}
}
