package baseline_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/isobar-go/isobar/internal/baseline"
	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/router"
)

// busy is a gateway before n engines, each with reports and 20 open requests with their first token, and prompts of 64 groups.
func busy(b *testing.B, name string, n int) (*gateway, []*world.Request) {
	b.Helper()
	g := open(b, name, n, 1)
	for i := range n {
		g.report(i, 20, i%3, float64(i)/float64(n))
		for k := range 20 {
			r := sim.Request{ID: uint64(k), PromptTokens: 2000, OutputTokens: int64(200 + 10*k), Blocks: path(uint64(i*20+k), 125)}
			if err := g.true[i].Submit(r); err != nil {
				b.Fatal(err)
			}
			g.true[i].Step(nil)
		}
	}
	prompts := make([]*world.Request, 64)
	for k := range prompts {
		prompts[k] = g.ask(2000, path(uint64(k%16), 125)...)
		prompts[k].Session = fmt.Sprint(k)
		prompts[k].ExpectedOutputTokens = 200
	}
	for k := range 20 * n {
		r := *prompts[k%64]
		g.send(&r)
		g.c.FirstToken(r.Slot)
	}
	return g, prompts
}

// BenchmarkChoice is a choice, a first token and an end.
func BenchmarkChoice(b *testing.B) {
	for _, name := range baseline.Names() {
		for _, n := range []int{8, 32} {
			b.Run(fmt.Sprintf("%s/engines=%d", name, n), func(b *testing.B) {
				g, prompts := busy(b, name, n)
				slot, k := g.slots, 0
				b.ReportAllocs()
				for b.Loop() {
					r := prompts[k&63]
					k++
					r.Slot = slot
					g.now = g.now.Add(time.Nanosecond) // reports stay young
					if _, err := g.c.Choose(r); err != nil {
						b.Fatal(err)
					}
					g.c.FirstToken(slot)
					g.c.End(slot, world.Done, router.Usage{OutputTokens: 200})
				}
			})
		}
	}
}
