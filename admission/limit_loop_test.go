package admission_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
)

// limitEngine is an engine that decodes only: one token for each running request in each pass.
type limitEngine struct {
	base, knee, perToken, perContext, perSeq float64 // ms, tokens, ms, ms, ms

	context float64 // tokens of each request
	slow    float64 // factor on the time of a pass
	kv      float64 // tokens of memory; 0 = enough
}

// pass is the time of one pass in ms.
func (e *limitEngine) pass(n float64) float64 {
	t := e.base + e.perToken*max(0, n-e.knee) + e.perContext*n*e.context + e.perSeq*n
	return t * e.slow
}

// throughput is in tokens per second. Beyond its memory the engine preempts, and works in vain.
func (e *limitEngine) throughput(n float64) float64 {
	x := 1000 * n / e.pass(n)
	if over := n * e.context / e.kv; e.kv > 0 && over > 1 {
		x /= over * over
	}
	return x
}

// best is the lowest of the numbers from which a quarter more brings less than the gain asked for.
func (e *limitEngine) best(lo, hi int, gain float64) int {
	for n := lo; n < hi; n++ {
		if math.Log(e.throughput(1.25*float64(n))/e.throughput(float64(n)))/math.Log(1.25) < gain {
			return n
		}
	}
	return hi
}

func limitProfile(name string) (limitEngine, bool) {
	e := limitEngine{context: 1000, slow: 1}
	switch name {
	case "rtx4090-8b":
		e.base, e.knee, e.perToken, e.perContext, e.perSeq = 16.6, 120, 0.088, 1.63e-4, 0.02
	case "h100-8b":
		e.base, e.knee, e.perToken, e.perContext, e.perSeq = 6.8, 190, 0.030, 5.1e-5, 0.02
	case "a100-8b":
		e.base, e.knee, e.perToken, e.perContext, e.perSeq = 10.5, 120, 0.0675, 8.4e-5, 0.02
	default:
		return e, false
	}
	return e, true
}

// limitLoop is a limiter before an engine, in steps of a second. demand is the number of requests that want to run.
type limitLoop struct {
	limiter *admission.Limiter
	engine  limitEngine
	demand  float64
	swing   float64 // share of demand by which it goes up and down
	period  float64 // of that, in seconds
	noise   float64 // of both figures, uniform
	rng     *rand.Rand
	now     int64
	running float64
	tokens  float64 // served in the last step
}

func (l *limitLoop) step() {
	demand := l.demand
	if l.swing > 0 {
		demand *= 1 + l.swing*math.Sin(2*math.Pi*float64(l.now)/float64(time.Second)/l.period)
	}
	target := min(demand, float64(l.limiter.Limit()))
	if target >= l.running {
		l.running = target
	} else {
		l.running -= max(min(1, l.running-target), 0.4*(l.running-target)) // the others end in time
	}
	around := func(v, share float64) float64 { return v * (1 + share*(2*l.rng.Float64()-1)) }
	l.tokens = 0
	if l.running > 0 {
		l.tokens = around(l.engine.throughput(l.running), l.noise)
	}
	l.now += int64(time.Second)
	l.limiter.Observe(l.now, around(l.running, l.noise/3), l.tokens)
}

// A script sets up a loop in its first line and then changes it at given seconds:
//
//	limit min=8 max=256 start=256 noise=0.1 seed=1 for=1200 every=20
//	0 profile=a100-8b demand=400
//	600 slow=2
//
// The plot has one line for each `every` seconds, with their means: = is the limit, o the running requests, x the
// throughput (its own scale, from 0 to the greatest); where they meet, the last of these is seen. "best" is the lowest number
// from which a quarter more running requests brings less than a fifth of that in throughput.
func TestLimiterPlots(t *testing.T) {
	datadriven.Walk(t, "testdata/limit", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var cfg admission.LimitConfig
			var seed uint64
			var noise float64
			length, every := 1200, 20
			d.MaybeScanArgs(t, "min", &cfg.Min)
			d.MaybeScanArgs(t, "max", &cfg.Max)
			d.MaybeScanArgs(t, "start", &cfg.Start)
			d.MaybeScanArgs(t, "seed", &seed)
			d.MaybeScanArgs(t, "for", &length)
			d.MaybeScanArgs(t, "every", &every)
			changes := d.HasArg("changes")
			cfg.ObserveOnly = d.HasArg("observe-only")
			if d.HasArg("noise") {
				var s string
				d.ScanArgs(t, "noise", &s)
				noise = parseFloat(t, s)
			}
			limiter, err := admission.NewLimiter(cfg)
			require.NoError(t, err)
			loop := &limitLoop{limiter: limiter, noise: noise, rng: rand.New(rand.NewPCG(seed, 1))}
			script := map[int]string{}
			for line := range strings.Lines(d.Input) {
				var at int
				_, err := fmt.Sscan(line, &at)
				require.NoError(t, err)
				_, script[at], _ = strings.Cut(strings.TrimSpace(line), " ")
			}
			return plotLimit(t, loop, script, length, every, changes)
		})
	})
}

func parseFloat(t *testing.T, s string) (v float64) {
	_, err := fmt.Sscan(s, &v)
	require.NoError(t, err)
	return v
}

func (l *limitLoop) apply(t *testing.T, settings string) {
	for _, kv := range strings.Fields(settings) {
		k, v, _ := strings.Cut(kv, "=")
		if k == "profile" {
			e, ok := limitProfile(v)
			require.True(t, ok, v)
			l.engine = e
			continue
		}
		f := parseFloat(t, v)
		switch k {
		case "demand":
			l.demand = f
		case "swing":
			l.swing = f
		case "period":
			l.period = f
		case "context":
			l.engine.context = f
		case "slow":
			l.engine.slow = f
		case "kv":
			l.engine.kv = f
		case "n0":
			l.engine.knee = f
		default:
			t.Fatalf("unknown setting %s", kv)
		}
	}
}

func plotLimit(t *testing.T, loop *limitLoop, script map[int]string, length, every int, changes bool) string {
	type row struct{ limit, running, tokens float64 }
	var rows []row
	var sum row
	cfg := loop.limiter.Config()
	var log strings.Builder
	best, lastBest := map[int]int{}, 0
	for s := range length {
		if settings, ok := script[s]; ok {
			loop.apply(t, settings)
			if b := loop.engine.best(cfg.Min, cfg.Max, cfg.Gain); b != lastBest {
				best[s/every], lastBest = b, b
			}
		}
		before := loop.limiter.Last()
		loop.step()
		if c := loop.limiter.Last(); c.At != before.At {
			fmt.Fprintf(&log, "%5ds %3d -> %3d %-10s running %5.1f, %6.0f tok/s, %5.2f ms/token, gain %.2f\n",
				c.At/int64(time.Second), c.From, c.To, c.Reason, c.Running, c.Throughput, c.PerToken, c.Gain)
		}
		limit := float64(loop.limiter.Limit())
		if cfg.ObserveOnly {
			limit = float64(loop.limiter.Learned())
		}
		sum.limit += limit
		sum.running += loop.running
		sum.tokens += loop.tokens
		if (s+1)%every == 0 {
			n := float64(every)
			rows = append(rows, row{sum.limit / n, sum.running / n, sum.tokens / n})
			sum = row{}
		}
	}
	if changes {
		return log.String()
	}
	const width = 64
	most := 0.0
	for _, r := range rows {
		most = max(most, r.tokens)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%5s %5s %5s %6s |0%*d|\n", "s", "limit", "run", "tok/s", width-1, cfg.Max)
	for i, r := range rows {
		if b, ok := best[i]; ok {
			fmt.Fprintf(&out, "%24s |%s| best %d\n", "", strings.Repeat("-", width), b)
		}
		line := []byte(strings.Repeat(" ", width))
		put := func(v, of float64, c byte) { line[min(width-1, int(v/of*width))] = c }
		put(r.tokens, most*1.001, 'x')
		put(r.limit, float64(cfg.Max), '=')
		put(r.running, float64(cfg.Max), 'o')
		fmt.Fprintf(&out, "%5d %5.0f %5.0f %6.0f |%s|\n", i*every, r.limit, r.running, r.tokens, line)
	}
	return out.String()
}
