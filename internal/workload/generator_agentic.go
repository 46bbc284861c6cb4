package workload

import (
	"fmt"
	"math"
	"time"
)

// Agentic is coding agents at work: sessions that call the model again and again with all that came before, after short
// pauses for tools and now and then a long one for a person. All sessions of one client version begin with the same
// tools prompt. Play it with a Loop. The blocks that outputs fill are numbered too (Request.AppendAll), and the next
// prompt of the session has them.
//
// A session ends after its turns, or before the turn that would make prompt and output longer than MaxContext. Arrival has
// an open loop in it: the one before, 1 s for its prefill, 20 ms for each token of its output, and Think.
//
// Statistics with the defaults: 100 sessions at 0.25/s, Poisson; 3 versions with tools prompts of 15,000 tokens, chosen by
// Zipf with exponent 1 (55, 27, 18 %); 1 to 400 turns, geometric with the mean 25, about 23 after the cut by MaxContext; the first
// prompt adds median 3000 tokens, each turn median 900, sigma 1; outputs median 220, sigma 1.1, mean 400; think times
// lognormal, median 8 s, sigma 1.2, mean 16 s; an infinite cache hits about 96 %.
//
// Agentic is a plain value.
type Agentic struct {
	// Seed of everything random.
	Seed uint64
	// Sessions is how many there are, 1 to 1e6; 0 = 100.
	Sessions int
	// Rate is the number of sessions that begin in a second; 0 = 0.25.
	Rate float64
	// Versions is the number of tools prompts, 1 to 1e6; 0 = 3.
	Versions int
	// ToolsTokens is the length of each, 1 to 1e6; 0 = 15,000.
	ToolsTokens int
	// Turns is the mean of the geometric number of requests in a session, 1 to 1e4; 0 = 25. Above 16 times that it is cut.
	Turns float64
	// First is what the first prompt has after the tools; default median 3000, sigma 0.8, 16 to 60,000 tokens.
	First Length
	// Added is what every later prompt has after the last output; default median 900, sigma 1, 1 to 40,000 tokens.
	Added Length
	// Output; default median 220, sigma 1.1, 1 to 8000 tokens.
	Output Length
	// Think is the median pause before a turn; 0 = 8 s.
	Think time.Duration
	// ThinkSigma is the standard deviation of its natural logarithm, 0 to 4; 0 = 1.2. A pause is at most an hour.
	ThinkSigma float64
	// MaxContext bounds prompt and output of a request, in tokens; 0 = 130,000.
	MaxContext int64
}

func (g *Agentic) fill() error {
	g.Sessions = orInt(g.Sessions, 100)
	g.Rate = orFloat(g.Rate, 0.25)
	g.Versions = orInt(g.Versions, 3)
	g.ToolsTokens = orInt(g.ToolsTokens, 15_000)
	g.Turns = orFloat(g.Turns, 25)
	g.Think = orDuration(g.Think, 8*time.Second)
	g.ThinkSigma = orFloat(g.ThinkSigma, 1.2)
	if g.MaxContext == 0 {
		g.MaxContext = 130_000
	}
	return firstOf(
		inRange("Sessions", float64(g.Sessions), 1, 1e6),
		inRange("Rate", g.Rate, 1e-6, 1e6),
		inRange("Sessions/Rate (s)", float64(g.Sessions)/g.Rate, 0, maxSeconds),
		inRange("Sessions*Turns", float64(g.Sessions)*g.Turns, 0, maxRequests),
		inRange("Versions", float64(g.Versions), 1, 1e6),
		inRange("ToolsTokens", float64(g.ToolsTokens), 1, 1e6),
		inRange("Turns", g.Turns, 1, 1e4),
		inRange("Think (s)", g.Think.Seconds(), 1e-9, 3600),
		inRange("ThinkSigma", g.ThinkSigma, 0, 4),
		inRange("MaxContext", float64(g.MaxContext), 1, MaxTokens),
		fillLength("First", &g.First, Length{Median: 3000, Sigma: 0.8, Min: 16, Max: 60_000}),
		fillLength("Added", &g.Added, Length{Median: 900, Sigma: 1, Max: 40_000}),
		fillLength("Output", &g.Output, Length{Median: 220, Sigma: 1.1, Max: 8000}))
}

// Generate makes the workload. It fails if no request fits MaxContext.
func (g Agentic) Generate() (Workload, error) {
	if err := g.fill(); err != nil {
		return nil, err
	}
	m := newMaker(g, Load{Seed: g.Seed})
	heads := make([]Segment, g.Versions)
	for v := range heads {
		heads[v] = m.fresh(int64(g.ToolsTokens) / BlockTokens)
	}
	popularity := zipfShares(g.Versions, 1)
	clock := m.poisson(g.Rate)
	for s := range g.Sessions {
		start := clock.next()
		head := heads[popularity.draw(m.choices)]
		turns := 1
		for u := m.choices.Float64(); u >= 1/g.Turns && float64(turns) < 16*g.Turns; u = m.choices.Float64() {
			turns++
		}
		g.session(m, uint64(s)+1, start, head, turns)
	}
	if len(m.out) == 0 {
		return nil, fmt.Errorf("workload: MaxContext is %d, no request fits", g.MaxContext)
	}
	return m.inOrder(), nil
}

// session adds the turns of one session. Its context is the head and one run of new blocks that grows.
func (g *Agentic) session(m *maker, id uint64, start time.Duration, head Segment, turns int) {
	own := Segment{First: m.next}
	context := int64(g.ToolsTokens)
	at := start
	for turn := range turns {
		length := g.Added
		if turn == 0 {
			length = g.First
		}
		context += length.draw(m.prompts)
		r := Request{
			Arrival:      at,
			PromptTokens: context,
			OutputTokens: g.Output.draw(m.outputs),
			Session:      id,
			Turn:         turn,
		}
		pause := g.Think.Seconds() * math.Exp(g.ThinkSigma*m.arrivals.NormFloat64())
		if turn > 0 {
			r.Think = toDuration(min(pause, 3600))
			r.Arrival += r.Think
		}
		context += r.OutputTokens
		if context > g.MaxContext {
			break
		}
		own.Blocks = context/BlockTokens - head.Blocks
		r.Segments = appendSegment(appendSegment(nil, head), own)
		at = r.Arrival + time.Second + time.Duration(r.OutputTokens)*20*time.Millisecond
		m.add(r)
	}
	m.fresh(own.Blocks)
}
