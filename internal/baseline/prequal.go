package baseline

import (
	"math"
	"slices"
	"time"

	"github.com/isobar-go/isobar/internal/world"
)

const (
	probePool    = 16
	probeAge     = time.Second
	probes       = 3    // per request
	hotQuantile  = 0.84 // of the requests in flight that probes have seen
	probeHistory = 128  // probes by which the quantile is estimated
)

// probe is the answer of an engine: its requests in flight and its latency.
type probe struct {
	engine, life int
	at           time.Time
	inFlight     float64
	latency      float64 // ms
	known        bool    // the latency is
}

// prober is the state of prequal-hcl.
type prober struct {
	f       *fleet
	pool    []probe
	history []float64 // requests in flight by the last probes, as a ring
	next    int
	sorted  []float64
	drawn   []int
	usable  []int // places in the pool
}

// prequal, "prequal-hcl" (hot, cold, latency): three probes a request, of engines drawn by lot, into a pool of 16, one for each
// engine, from which those older than 1 s are dropped. An engine is hot above the 0.84 quantile of requests in flight that the
// last 128 probes have seen. Where any in the pool is cold, the cold one with the lowest latency; else the one with the fewest in
// flight; where the pool is empty, any.
//
// A probe sees what all see: the last report, of the age that it has, and the requests sent since. Its latency is the median of the
// five of the gateway's last 32 times to the first token there that found about as many requests in flight; unknown, it is the mean
// of the known. A request sent counts in the pool at once.
func prequal(f *fleet) pick {
	p := &prober{
		f: f, pool: make([]probe, 0, probePool), history: make([]float64, 0, probeHistory), sorted: make([]float64, 0, probeHistory),
	}
	return p.pick
}

func (p *prober) pick(_ *world.Request, among []int) int {
	now := p.f.env.Now()
	p.pool = slices.DeleteFunc(p.pool, func(q probe) bool {
		return now.Sub(q.at) > probeAge || p.f.engines[q.engine].life != q.life
	})
	p.drawn = append(p.drawn[:0], among...)
	for k := range min(probes, len(among)) {
		swap := k + p.f.rng.IntN(len(among)-k)
		p.drawn[k], p.drawn[swap] = p.drawn[swap], p.drawn[k]
		p.ask(p.drawn[k], now)
	}
	at := p.best(among)
	for i := range p.pool {
		if p.pool[i].engine == at {
			p.pool[i].inFlight++
		}
	}
	return at
}

// ask puts the answer of an engine into the pool, where it has one that is not too old.
func (p *prober) ask(i int, now time.Time) {
	e := &p.f.engines[i]
	if !e.report.known || now.Sub(e.report.arrived) > probeAge {
		return
	}
	q := probe{
		engine: i, life: e.life, at: e.report.arrived, inFlight: e.inFlight(),
	}
	q.latency, q.known = e.latencies.estimate(q.inFlight)
	if len(p.history) < probeHistory {
		p.history = append(p.history, q.inFlight)
	} else {
		p.history[p.next] = q.inFlight
		p.next = (p.next + 1) % probeHistory
	}
	oldest := 0
	for k := range p.pool {
		if p.pool[k].engine == i {
			p.pool[k] = q
			return
		}
		if p.pool[k].at.Before(p.pool[oldest].at) {
			oldest = k
		}
	}
	if len(p.pool) < probePool {
		p.pool = append(p.pool, q)
		return
	}
	p.pool[oldest] = q
}

// best chooses from the pool.
func (p *prober) best(among []int) int {
	p.usable = p.usable[:0]
	sum, known := 0.0, 0.0
	for k := range p.pool {
		if _, in := slices.BinarySearch(among, p.pool[k].engine); in {
			p.usable = append(p.usable, k)
			if p.pool[k].known {
				sum += p.pool[k].latency
				known++
			}
		}
	}
	if len(p.usable) == 0 {
		return p.f.any(among)
	}
	hot := p.hotAbove()
	return p.pool[p.f.least(p.usable, func(k int) rank {
		q := &p.pool[k]
		if q.inFlight > hot {
			return rank{1, q.inFlight}
		}
		if !q.known {
			return rank{0, sum / max(known, 1)}
		}
		return rank{0, q.latency}
	})].engine
}

// hotAbove is the quantile of requests in flight above which an engine is hot: the value nearest to that rank.
func (p *prober) hotAbove() float64 {
	p.sorted = append(p.sorted[:0], p.history...)
	slices.Sort(p.sorted)
	return p.sorted[max(int(math.Ceil(hotQuantile*float64(len(p.sorted))))-1, 0)]
}
