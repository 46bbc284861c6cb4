package baseline_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/internal/baseline"
	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/router"
)

// naive is a list of what is open, per engine and life.
type naive struct {
	slot, engine, life int
	prompt, generated  int64
}

// Whatever happens, every rule chooses only engines that are there, says so when there are none, and has its books in order at the end.
func TestChoicesAreLegal(t *testing.T) {
	for _, name := range baseline.Names() {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) { legal(t, rt, name) })
		})
	}
}

func legal(t *testing.T, rt *rapid.T, name string) {
	n := rapid.IntRange(0, 4).Draw(rt, "engines")
	g := open(t, name, n, rapid.Uint64().Draw(rt, "seed"))
	out := make([]world.Change, n) // 0 = in
	var all []naive
	engine := func() int {
		if n == 0 {
			rt.Skip("no engines")
		}
		return rapid.IntRange(0, n-1).Draw(rt, "engine")
	}
	some := func() *naive {
		if len(all) == 0 {
			rt.Skip("nothing is open")
		}
		return &all[rapid.IntRange(0, len(all)-1).Draw(rt, "open")]
	}
	end := func(at int) {
		cause := world.Cause(rapid.IntRange(int(world.Done), int(world.GivenUp)).Draw(rt, "cause"))
		g.c.End(all[at].slot, cause, router.Usage{OutputTokens: 5})
		g.free = append(g.free, all[at].slot)
		all = append(all[:at], all[at+1:]...)
	}
	rt.Repeat(map[string]func(*rapid.T){
		"choose": func(rt *rapid.T) {
			g.now = g.now.Add(rapid.SampledFrom([]time.Duration{0, time.Millisecond, 2 * time.Second}).Draw(rt, "later"))
			blocks := path(rapid.Uint64Range(0, 2).Draw(rt, "group"), rapid.IntRange(0, 6).Draw(rt, "blocks"))
			r := g.ask(max(int64(len(blocks))*16+rapid.Int64Range(0, 3).Draw(rt, "rest"), 1), blocks...)
			r.Session = rapid.SampledFrom([]string{"", "s", "t"}).Draw(rt, "session")
			avoided, usable := map[int]bool{}, 0
			for i := range n {
				if rapid.IntRange(0, 3).Draw(rt, "avoid") == 0 {
					r.Avoid = append(r.Avoid, g.engines[i].ID)
					avoided[i] = true
				}
				if out[i] == 0 && !avoided[i] {
					usable++
				}
			}
			long := rapid.IntRange(0, 9).Draw(rt, "too long") == 0
			if long {
				r.PromptTokens = 100_000
			}
			c, err := g.try(r)
			anybody := false
			for i := range n {
				anybody = anybody || out[i] == 0
			}
			if !anybody || long {
				require.Error(rt, err)
				if name != "own-only" { // the pool calls it too long where both are true
					want := router.ErrNoEndpoints
					if anybody {
						want = router.ErrTooLong
					}
					require.ErrorIs(rt, err, want)
				}
				var reject *router.RejectError
				require.True(rt, errors.As(err, &reject))
				return
			}
			if name == "own-only" && err != nil {
				require.ErrorIs(rt, err, router.ErrNoEndpoints, "its circuits are open")
				return
			}
			require.NoError(rt, err)
			require.Zero(rt, out[c.Engine], "it is there")
			if name != "own-only" && usable > 0 {
				require.False(rt, avoided[c.Engine], "it is avoided, and another is there")
			}
			if name != "own-only" { // the pool tells what its index knows
				require.LessOrEqual(rt, c.Cached, r.PromptTokens-1)
			}
			all = append(all, naive{slot: r.Slot, engine: c.Engine, prompt: r.PromptTokens})
		},
		"first":    func(*rapid.T) { g.c.FirstToken(some().slot) },
		"progress": func(rt *rapid.T) { g.c.Progress(some().slot, rapid.Int64Range(0, 50).Draw(rt, "tokens")) },
		"end": func(rt *rapid.T) {
			some()
			end(rapid.IntRange(0, len(all)-1).Draw(rt, "ends"))
		},
		"observe": func(rt *rapid.T) {
			i := engine()
			if out[i] == world.Gone {
				rt.Skip("nobody polls it")
			}
			g.report(i, rapid.IntRange(0, 9).Draw(rt, "running"), rapid.IntRange(0, 3).Draw(rt, "waiting"), rapid.Float64Range(0, 1).Draw(rt, "kv"))
		},
		"lost": func(rt *rapid.T) {
			if i := engine(); out[i] != world.Gone {
				g.c.Lost(i)
			}
		},
		"change": func(*rapid.T) {
			switch i := engine(); out[i] {
			case 0:
				out[i] = rapid.SampledFrom([]world.Change{world.Draining, world.Gone}).Draw(rt, "change")
				g.c.Change(i, out[i])
			case world.Draining:
				out[i] = 0
				g.c.Change(i, world.Ready)
			default:
				out[i] = 0
				g.c.Change(i, world.Joined)
			}
		},
		"": func(*rapid.T) {},
	})
	for len(all) > 0 {
		end(0)
	}
	require.NoError(rt, g.c.(interface{ Close() error }).Close())
}

// Least requests against a list of what is open.
func TestAccountingAgainstNaive(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const n = 3
		requests := open(t, "least-requests", n, 1)
		tokens := open(t, "sticky-until-saturated", n, 1) // without prefixes: fewest tokens in flight
		pending := open(t, "lpwl", n, 1)
		for _, g := range []*gateway{requests, tokens, pending} {
			var all []naive
			life := [n]int{}
			prefilling := map[int]bool{}
			sum := func(of func(o naive) int64) (s [n]int64) {
				for _, o := range all {
					if o.life == life[o.engine] {
						s[o.engine] += of(o)
					}
				}
				return s
			}
			for range rapid.IntRange(1, 40).Draw(rt, "steps") {
				switch op := rapid.IntRange(0, 9).Draw(rt, "op"); {
				case op < 5:
					r := g.ask(rapid.Int64Range(1, 30).Draw(rt, "prompt"))
					var load [n]int64
					switch g {
					case requests:
						load = sum(func(naive) int64 { return 1 })
					case tokens:
						load = sum(func(o naive) int64 { return o.prompt + o.generated })
					case pending:
						load = sum(func(o naive) int64 {
							if prefilling[o.slot] {
								return o.prompt
							}
							return 0
						})
					}
					at := g.send(r)
					require.Equal(rt, min(load[0], load[1], load[2]), load[at])
					all = append(all, naive{slot: r.Slot, engine: at, life: life[at], prompt: r.PromptTokens})
					prefilling[r.Slot] = true
				case len(all) == 0:
				case op == 5:
					o := all[rapid.IntRange(0, len(all)-1).Draw(rt, "first")]
					g.c.FirstToken(o.slot)
					prefilling[o.slot] = false
				case op == 6:
					o := &all[rapid.IntRange(0, len(all)-1).Draw(rt, "progress")]
					o.generated += 7
					g.c.Progress(o.slot, o.generated)
				case op == 7:
					i := rapid.IntRange(0, n-1).Draw(rt, "engine")
					g.c.Change(i, world.Gone)
					g.c.Change(i, world.Joined)
					life[i]++
				default:
					at := rapid.IntRange(0, len(all)-1).Draw(rt, "end")
					g.end(all[at].slot)
					all = append(all[:at], all[at+1:]...)
				}
			}
		}
	})
}
