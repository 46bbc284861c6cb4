package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Generator makes a workload. The zero value of each generator of this package works; equal values make equal workloads.
// A Generator is a plain value.
type Generator interface {
	// Generate returns the workload in order of arrival, or names the first parameter that is out of range.
	Generate() (Workload, error)
}

// maxRequests bounds what a generator makes.
const maxRequests = 50_000_000

// maxSeconds bounds how long a generated workload takes, about: 32 years.
const maxSeconds = 1e9

// Load is how many requests a generator makes and how fast. It is a plain value.
type Load struct {
	// Seed of everything random.
	Seed uint64
	// Requests is how many there are, at most 50 million; 0 = 2000.
	Requests int
	// Rate is the mean number of arrivals in a second; 0 = the generator's default. Arrivals are a Poisson process unless
	// the generator says otherwise.
	Rate float64
}

func (l *Load) fill(rate float64) error {
	if l.Requests == 0 {
		l.Requests = 2000
	}
	if l.Rate == 0 {
		l.Rate = rate
	}
	if err := inRange("Load.Requests", float64(l.Requests), 1, maxRequests); err != nil {
		return err
	}
	if err := inRange("Load.Rate", l.Rate, 1e-6, 1e6); err != nil {
		return err
	}
	return inRange("Load.Requests/Load.Rate (s)", float64(l.Requests)/l.Rate, 0, maxSeconds)
}

func inRange(field string, v, lo, hi float64) error {
	if !(v >= lo && v <= hi) {
		return fmt.Errorf("workload: %s is %v, it must be in [%v, %v]", field, v, lo, hi)
	}
	return nil
}

// orInt is v, or the default of a field left zero.
func orInt(v, def int) int {
	if v == 0 {
		return def
	}
	return v
}

func orFloat(v, def float64) float64 {
	if v == 0 {
		return def
	}
	return v
}

func orDuration(v, def time.Duration) time.Duration {
	if v == 0 {
		return def
	}
	return v
}

// fillLength puts the default in place of a zero value and checks the result.
func fillLength(field string, l *Length, def Length) error {
	*l = l.or(def)
	if err := l.Validate(); err != nil {
		return fmt.Errorf("workload: %s: %w", field, err)
	}
	return nil
}

// firstOf is the first error.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// maker is what generators share: streams of their own and block numbers of their own.
type maker struct {
	arrivals *rand.Rand
	choices  *rand.Rand
	prompts  *rand.Rand
	outputs  *rand.Rand
	next     uint64 // number of the next new block
	out      Workload
}

// newMaker begins the numbers at a hash of the generator with all its parameters: workloads that differ never share blocks.
func newMaker(g any, l Load) *maker {
	return &maker{
		arrivals: newRand(l.Seed, "arrivals"),
		choices:  newRand(l.Seed, "choices"),
		prompts:  newRand(l.Seed, "prompts"),
		outputs:  newRand(l.Seed, "outputs"),
		next:     hashOf("generator", fmt.Sprintf("%T%+v", g, g)),
		out:      make(Workload, 0, min(l.Requests, 1<<20)),
	}
}

// fresh numbers blocks that nobody has. The gap of one number keeps runs from joining.
func (m *maker) fresh(blocks int64) Segment {
	s := Segment{m.next, blocks}
	m.next += uint64(blocks) + 1
	return s
}

// prompt begins with the whole blocks of head and is new after them.
func (m *maker) prompt(head Segment, tokens int64) []Segment {
	blocks := tokens / BlockTokens
	head.Blocks = min(head.Blocks, blocks)
	var list []Segment
	list = appendSegment(list, head)
	return appendSegment(list, m.fresh(blocks-head.Blocks))
}

// add appends a request and gives it its ID.
func (m *maker) add(r Request) {
	r.ID = uint64(len(m.out))
	m.out = append(m.out, r)
}

// poisson is a clock of Poisson arrivals.
type poisson struct {
	r    *rand.Rand
	rate float64
	at   time.Duration
}

func (p *poisson) next() time.Duration {
	p.at += exponential(p.r, p.rate)
	return p.at
}

func (m *maker) poisson(rate float64) *poisson { return &poisson{r: m.arrivals, rate: rate} }

// TinyChats are many small requests without anything in common: the work is all decode, a pass costs the same whatever its
// few prompt tokens, and only the balance of counts matters.
//
// Statistics with the defaults: 40 requests/s, gap CV 1; prompts lognormal, median 60, mean 82; outputs lognormal, median
// 80, mean 110; no hits.
//
// TinyChats is a plain value.
type TinyChats struct {
	// Load; the default rate is 40.
	Load Load
	// Prompt; default median 60, sigma 0.8, 4 to 1000 tokens.
	Prompt Length
	// Output; default median 80, sigma 0.8, 1 to 800 tokens.
	Output Length
}

// Generate makes the workload.
func (g TinyChats) Generate() (Workload, error) {
	err := firstOf(g.Load.fill(40),
		fillLength("Prompt", &g.Prompt, Length{Median: 60, Sigma: 0.8, Min: 4, Max: 1000}),
		fillLength("Output", &g.Output, Length{Median: 80, Sigma: 0.8, Max: 800}))
	if err != nil {
		return nil, err
	}
	return plain(g, g.Load, g.Prompt, g.Output), nil
}

// HeavyTail has lengths that differ by orders of magnitude: a few requests are most of the work, and whoever stands
// behind one waits.
//
// Statistics with the defaults: 6 requests/s, gap CV 1; prompts lognormal, median 1200, sigma 1, and 5 % Pareto from 8000
// with alpha 1.1, cut at 120,000: the longest 1 % of them are about a quarter of the prompt tokens; outputs lognormal, median
// 200, sigma 0.9, and 3 % Pareto from 1000 with alpha 1.3, cut at 8000; no hits.
//
// HeavyTail is a plain value.
type HeavyTail struct {
	// Load; the default rate is 6.
	Load Load
	// Prompt; default as above.
	Prompt Length
	// Output; default as above.
	Output Length
}

// Generate makes the workload.
func (g HeavyTail) Generate() (Workload, error) {
	err := firstOf(g.Load.fill(6),
		fillLength("Prompt", &g.Prompt, Length{Median: 1200, Sigma: 1, Tail: 0.05, TailFrom: 8000, Alpha: 1.1, Min: 16, Max: 120_000}),
		fillLength("Output", &g.Output, Length{Median: 200, Sigma: 0.9, Tail: 0.03, TailFrom: 1000, Alpha: 1.3, Max: 8000}))
	if err != nil {
		return nil, err
	}
	return plain(g, g.Load, g.Prompt, g.Output), nil
}

// plain are Poisson arrivals of requests that share nothing.
func plain(g any, l Load, prompt, output Length) Workload {
	m := newMaker(g, l)
	clock := m.poisson(l.Rate)
	for range l.Requests {
		r := Request{Arrival: clock.next(), PromptTokens: prompt.draw(m.prompts), OutputTokens: output.draw(m.outputs)}
		r.Segments = m.prompt(Segment{}, r.PromptTokens)
		m.add(r)
	}
	return m.out
}

// LongPrompts come in waves: PerWave requests of very long prompts at almost the same moment, before any telemetry can
// tell of the first of them, then nothing until the next wave.
//
// Statistics with the defaults: waves of 16 every 20 s (0.8 requests/s), each spread over 100 ms; prompts lognormal,
// median 24,000, mean 25,100; outputs lognormal, median 150; gap CV sqrt(PerWave-1), 3.9; no hits.
//
// LongPrompts is a plain value.
type LongPrompts struct {
	// Load; Rate is not used.
	Load Load
	// PerWave is the number of requests in a wave, 1 to 1e6; 0 = 16.
	PerWave int
	// Every is the time from one wave to the next; 0 = 20 s.
	Every time.Duration
	// Within is how long a wave takes, at most Every; 0 = 100 ms. Arrivals are uniform in it.
	Within time.Duration
	// Prompt; default median 24,000, sigma 0.3, 4000 to 100,000 tokens.
	Prompt Length
	// Output; default median 150, sigma 0.5, 1 to 1000 tokens.
	Output Length
}

// Generate makes the workload.
func (g LongPrompts) Generate() (Workload, error) {
	g.PerWave = orInt(g.PerWave, 16)
	g.Every = orDuration(g.Every, 20*time.Second)
	g.Within = orDuration(g.Within, 100*time.Millisecond)
	err := firstOf(g.Load.fill(1),
		inRange("PerWave", float64(g.PerWave), 1, 1e6),
		inRange("Every (s)", g.Every.Seconds(), 1e-3, 1e6),
		inRange("Load.Requests/PerWave*Every (s)", float64(g.Load.Requests)/float64(g.PerWave)*g.Every.Seconds(), 0, maxSeconds),
		inRange("Within (s)", g.Within.Seconds(), 0, g.Every.Seconds()),
		fillLength("Prompt", &g.Prompt, Length{Median: 24_000, Sigma: 0.3, Min: 4000, Max: 100_000}),
		fillLength("Output", &g.Output, Length{Median: 150, Sigma: 0.5, Max: 1000}))
	if err != nil {
		return nil, err
	}
	m := newMaker(g, g.Load)
	for i := range g.Load.Requests {
		wave := time.Duration(i/g.PerWave) * g.Every
		r := Request{
			Arrival:      wave + toDuration(m.arrivals.Float64()*g.Within.Seconds()),
			PromptTokens: g.Prompt.draw(m.prompts),
			OutputTokens: g.Output.draw(m.outputs),
		}
		r.Segments = m.prompt(Segment{}, r.PromptTokens)
		m.add(r)
	}
	return m.inOrder(), nil
}

// inOrder sorts by arrival and gives IDs in that order.
func (m *maker) inOrder() Workload {
	w := m.out.sorted()
	for i := range w {
		w[i].ID = uint64(i)
	}
	return w
}

// ColdStart is a rush on cold caches: after a calm time all system prompts are replaced by new versions and, at the same
// moment, the rate rises to Peak times its base and falls back with the given half-life.
//
// Statistics with the defaults: base 4 requests/s, from 60 s on 4 (1 + 9 x 2^(-(t-60s)/30s)) requests/s, Poisson; 16 system
// prompts of 4000 tokens, equally popular; prompts are one of them and a lognormal rest, median 200; outputs median 200; an
// infinite cache misses every system prompt twice, once before and once after the change.
//
// ColdStart is a plain value.
type ColdStart struct {
	// Load; the default base rate is 4.
	Load Load
	// After is the calm time; 0 = 60 s.
	After time.Duration
	// Peak is the rate at the change over the base rate, 1 to 1000; 0 = 10.
	Peak float64
	// HalfLife of what is above the base rate; 0 = 30 s.
	HalfLife time.Duration
	// Prompts is the number of system prompts, 1 to 1e6; 0 = 16.
	Prompts int
	// PrefixTokens is the length of each, 1 to 1e6; 0 = 4000.
	PrefixTokens int
	// Rest is what follows it; default median 200, sigma 0.8, 1 to 4000 tokens.
	Rest Length
	// Output; default median 200, sigma 0.7, 1 to 2000 tokens.
	Output Length
}

// Generate makes the workload.
func (g ColdStart) Generate() (Workload, error) {
	g.After = orDuration(g.After, time.Minute)
	g.Peak = orFloat(g.Peak, 10)
	g.HalfLife = orDuration(g.HalfLife, 30*time.Second)
	g.Prompts = orInt(g.Prompts, 16)
	g.PrefixTokens = orInt(g.PrefixTokens, 4000)
	err := firstOf(g.Load.fill(4),
		inRange("After (s)", g.After.Seconds(), 0, 1e6),
		inRange("Peak", g.Peak, 1, 1000),
		inRange("HalfLife (s)", g.HalfLife.Seconds(), 1e-3, 1e6),
		inRange("Prompts", float64(g.Prompts), 1, 1e6),
		inRange("PrefixTokens", float64(g.PrefixTokens), 1, 1e6),
		fillLength("Rest", &g.Rest, Length{Median: 200, Sigma: 0.8, Max: 4000}),
		fillLength("Output", &g.Output, Length{Median: 200, Sigma: 0.7, Max: 2000}))
	if err != nil {
		return nil, err
	}
	m := newMaker(g, g.Load)
	heads := [2][]Segment{}
	for v := range heads {
		for range g.Prompts {
			heads[v] = append(heads[v], m.fresh(int64(g.PrefixTokens)/BlockTokens))
		}
	}
	rate := func(t time.Duration) float64 {
		if t < g.After {
			return g.Load.Rate
		}
		return g.Load.Rate * (1 + (g.Peak-1)*math.Exp2(-(t-g.After).Seconds()/g.HalfLife.Seconds()))
	}
	now := time.Duration(0)
	for range g.Load.Requests {
		now = thinned(m.arrivals, now, g.Load.Rate, g.After, g.Peak, rate)
		version := 0
		if now >= g.After {
			version = 1
		}
		head := heads[version][m.choices.IntN(g.Prompts)]
		r := Request{
			Arrival:      now,
			PromptTokens: int64(g.PrefixTokens) + g.Rest.draw(m.prompts),
			OutputTokens: g.Output.draw(m.outputs),
		}
		r.Segments = m.prompt(head, r.PromptTokens)
		m.add(r)
	}
	return m.out, nil
}

// thinned is the next arrival of a Poisson process whose rate is base before change and falls from base*peak after it
// (Lewis, Shedler: Simulation of Nonhomogeneous Poisson Processes by Thinning, 1979). The process has no memory, so
// an arrival drawn beyond the change is drawn again from there.
func thinned(
	r *rand.Rand, now time.Duration, base float64, change time.Duration, peak float64, rate func(time.Duration) float64,
) time.Duration {
	for {
		bound := base
		if now >= change {
			// The rate only falls from here on.
			bound = min(base*peak, rate(now))
		}
		next := now + exponential(r, bound)
		if now < change && next >= change {
			now = change
			continue
		}
		now = next
		if r.Float64()*bound < rate(now) {
			return now
		}
	}
}
