package router_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/router"
)

// plotClass is a class of the plots: what one request of it takes.
type plotClass struct {
	name  string
	class router.Class
	req   router.Request
	takes time.Duration
	by    time.Duration // until when it must be complete; 0 = any time
}

var plotClasses = []plotClass{
	{"interactive", router.ClassInteractive, router.Request{PromptTokens: 100, MaxOutputTokens: 20}, time.Second, 6 * time.Second},
	{"standard", router.ClassStandard, router.Request{PromptTokens: 500, MaxOutputTokens: 100}, 2 * time.Second, 0},
	{"batch", router.ClassBatch, router.Request{PromptTokens: 4000, MaxOutputTokens: 500}, 12 * time.Second, 0},
}

// Each row of a plot is one second. The arguments are the pool's: its engines and their cap, and the queue. A line of the input says
// from when on how many requests of each class arrive in a second, or which engine is lost then, with all that it runs, or back.
//
//	pool engines=4 cap=4 seconds=60 max=24 timeout=20 age-after=5 shares=0.25
//	0 2 1 0.3
//	10 lose e2
func TestQueuePlots(t *testing.T) {
	datadriven.Walk(t, "testdata/queue", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			require.Equal(t, "pool", d.Cmd)
			var engines, endpointCap, seconds, timeout, ageAfter int
			var share string
			cfg := router.Config{}
			d.ScanArgs(t, "engines", &engines)
			d.ScanArgs(t, "cap", &endpointCap)
			d.ScanArgs(t, "seconds", &seconds)
			d.ScanArgs(t, "max", &cfg.Queue.Max)
			d.ScanArgs(t, "timeout", &timeout)
			d.ScanArgs(t, "age-after", &ageAfter)
			d.ScanArgs(t, "shares", &share)
			cfg.Caps = admission.Caps{Endpoint: endpointCap}
			cfg.Queue.Timeout, cfg.Queue.AgeAfter = time.Duration(timeout)*time.Second, time.Duration(ageAfter)*time.Second
			cfg.Queue.WaitForEndpoints = true
			var err error
			cfg.Shares.Interactive, err = strconv.ParseFloat(share, 64)
			require.NoError(t, err)
			return plotPool(t, cfg, engines, seconds, strings.TrimSpace(d.Input))
		})
	})
}

func plotPool(t *testing.T, cfg router.Config, engines, seconds int, script string) string {
	const ticks = 20 // in a second
	c := newClock()
	var ids []string
	for i := range engines {
		ids = append(ids, fmt.Sprintf("e%d", i+1))
	}
	p := newPool(t, c, cfg, ids...)
	l := newLoop(t, c, p)
	events := map[int][]string{}
	for line := range strings.Lines(script) {
		at, what, _ := strings.Cut(strings.TrimSpace(line), " ")
		second, err := strconv.Atoi(at)
		require.NoError(t, err)
		events[second] = append(events[second], what)
	}
	rates, due := make([]float64, len(plotClasses)), make([]float64, len(plotClasses))
	live := engines
	var out strings.Builder
	fmt.Fprintf(&out, "  s  running of limit, by class%s  lost  |waiting: i, s, b\n", strings.Repeat(" ", max(0, engines*cfg.Caps.Endpoint-24)))
	was := 0
	for i := range seconds * ticks {
		if i%ticks == 0 {
			for _, what := range events[i/ticks] {
				switch fields := strings.Fields(what); fields[0] {
				case "lose":
					live--
					require.NoError(t, p.Remove(fields[1]))
					l.lose(fields[1])
				case "back":
					live++
					require.NoError(t, p.Add(router.Endpoint{ID: fields[1], Incarnation: what + strconv.Itoa(i)}))
				default:
					require.Len(t, fields, len(plotClasses))
					for k, f := range fields {
						var err error
						rates[k], err = strconv.ParseFloat(f, 64)
						require.NoError(t, err)
					}
				}
			}
		}
		for k, class := range plotClasses {
			for due[k] += rates[k] / ticks; due[k] >= 1-1e-9; due[k]-- {
				req := class.req
				req.Class = class.class
				if class.by > 0 {
					req.Deadline = c.now().Add(class.by)
				}
				l.arrive(class.name, req, class.takes)
			}
		}
		l.step(time.Second / ticks)
		limit := live * cfg.Caps.Endpoint
		require.LessOrEqual(t, len(l.running), limit)
		if i%ticks < ticks-1 {
			continue
		}
		running, waits, lost := "", "", 0
		for _, class := range plotClasses {
			lost += l.class(class.name).refused
			for _, j := range l.running {
				if j.name == class.name {
					running += class.name[:1]
				}
			}
			for _, j := range l.waiting {
				if j.name == class.name {
					waits += class.name[:1]
				}
			}
		}
		row := running + strings.Repeat(".", limit-len(running)) + "]"
		fmt.Fprintf(&out, "%3d  %-*s  %6s  |%s\n", i/ticks, max(25, engines*cfg.Caps.Endpoint+1), row, strings.Repeat("x", lost-was), waits)
		was = lost
	}
	for _, class := range plotClasses {
		n := l.class(class.name)
		waiting := 0
		for _, j := range l.waiting {
			if j.name == class.name {
				waiting++
			}
		}
		require.Equal(t, n.offered, n.served+n.refused+waiting, "conservation")
		fmt.Fprintf(&out, "%-11s %3d offered, %3d served, %2d rejected, %2d wait; longest wait of the served %v\n",
			class.name, n.offered, n.served, n.refused, waiting, n.longest)
	}
	l.close()
	return out.String()
}

// lose fails all that runs on an engine.
func (l *loop) lose(id string) {
	kept := l.running[:0]
	for _, j := range l.running {
		lease, _ := j.ticket.Lease()
		if lease.Endpoint().ID != id {
			kept = append(kept, j)
			continue
		}
		lease.Fail(errors.New("gone"))
	}
	l.running = kept
}
