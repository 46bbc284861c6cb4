package workload

import (
	"fmt"
	"time"
)

// PopularPrefix sends most requests to one long prefix. Affinity alone puts them all on the endpoint that has it.
//
// Statistics with the defaults: 15 requests/s, gap CV 1; 80 % begin with the same 6000 tokens, the others with as many of
// their own; then a lognormal rest, median 400, mean 551; outputs lognormal, median 200; an infinite cache hits 0.8 of the
// prefix tokens, 73 % of all.
//
// PopularPrefix is a plain value.
type PopularPrefix struct {
	// Load; the default rate is 15.
	Load Load
	// PrefixTokens is the length of the prefix, 1 to 1e6; 0 = 6000.
	PrefixTokens int
	// Share of the requests that have the popular one, above 0 and at most 1; 0 = 0.8.
	Share float64
	// Rest is what follows it; default median 400, sigma 0.8, 1 to 8000 tokens.
	Rest Length
	// Output; default median 200, sigma 0.7, 1 to 2000 tokens.
	Output Length
}

// Generate makes the workload.
func (g PopularPrefix) Generate() (Workload, error) {
	g.PrefixTokens = orInt(g.PrefixTokens, 6000)
	g.Share = orFloat(g.Share, 0.8)
	err := firstOf(g.Load.fill(15),
		inRange("PrefixTokens", float64(g.PrefixTokens), 1, 1e6),
		inRange("Share", g.Share, 0, 1),
		fillLength("Rest", &g.Rest, Length{Median: 400, Sigma: 0.8, Max: 8000}),
		fillLength("Output", &g.Output, Length{Median: 200, Sigma: 0.7, Max: 2000}))
	if err != nil {
		return nil, err
	}
	m := newMaker(g, g.Load)
	popular := m.fresh(int64(g.PrefixTokens) / BlockTokens)
	clock := m.poisson(g.Load.Rate)
	for range g.Load.Requests {
		head := Segment{}
		if m.choices.Float64() < g.Share {
			head = popular
		}
		r := Request{
			Arrival:      clock.next(),
			PromptTokens: int64(g.PrefixTokens) + g.Rest.draw(m.prompts),
			OutputTokens: g.Output.draw(m.outputs),
		}
		r.Segments = m.prompt(head, r.PromptTokens)
		m.add(r)
	}
	return m.out, nil
}

// SharedPrefixes has many system prompts of several thousand tokens, some much more popular than others: too many for one
// cache, so that who serves which decides how much is computed.
//
// Statistics with the defaults: 12 requests/s, gap CV 1; 256 system prompts, uniform in 2000 to 8000 tokens, chosen by Zipf
// with exponent 1 (the first has 16 % of the requests); then a lognormal rest, median 300; outputs lognormal, median 150; an
// infinite cache hits about 81 % of the tokens of 2000 requests, 90 % of those of 20,000.
//
// SharedPrefixes is a plain value.
type SharedPrefixes struct {
	// Load; the default rate is 12.
	Load Load
	// Prompts is the number of system prompts, 1 to 1e6; 0 = 256.
	Prompts int
	// Zipf is the exponent of their popularity, 0 to 10: the k-th has a share in proportion to k^-Zipf. 0 = 1; for equal
	// shares take a very small number.
	Zipf float64
	// MinTokens, MaxTokens bound the length of a system prompt, 1 to 1e6; 0 = 2000 and 8000.
	MinTokens int
	MaxTokens int
	// Rest is what follows it; default median 300, sigma 0.9, 1 to 8000 tokens.
	Rest Length
	// Output; default median 150, sigma 0.8, 1 to 2000 tokens.
	Output Length
}

// Generate makes the workload.
func (g SharedPrefixes) Generate() (Workload, error) {
	g.Prompts = orInt(g.Prompts, 256)
	g.Zipf = orFloat(g.Zipf, 1)
	g.MinTokens = orInt(g.MinTokens, 2000)
	g.MaxTokens = orInt(g.MaxTokens, max(8000, g.MinTokens))
	err := firstOf(g.Load.fill(12),
		inRange("Prompts", float64(g.Prompts), 1, 1e6),
		inRange("Zipf", g.Zipf, 0, 10),
		inRange("MinTokens", float64(g.MinTokens), 1, 1e6),
		inRange("MaxTokens", float64(g.MaxTokens), float64(g.MinTokens), 1e6),
		fillLength("Rest", &g.Rest, Length{Median: 300, Sigma: 0.9, Max: 8000}),
		fillLength("Output", &g.Output, Length{Median: 150, Sigma: 0.8, Max: 2000}))
	if err != nil {
		return nil, err
	}
	m := newMaker(g, g.Load)
	sizes := newRand(g.Load.Seed, "system prompts")
	heads := make([]Segment, g.Prompts)
	tokens := make([]int64, g.Prompts)
	for k := range heads {
		tokens[k] = int64(g.MinTokens + sizes.IntN(g.MaxTokens-g.MinTokens+1))
		heads[k] = m.fresh(tokens[k] / BlockTokens)
	}
	popularity := zipfShares(g.Prompts, g.Zipf)
	clock := m.poisson(g.Load.Rate)
	for range g.Load.Requests {
		k := popularity.draw(m.choices)
		r := Request{
			Arrival:      clock.next(),
			PromptTokens: tokens[k] + g.Rest.draw(m.prompts),
			OutputTokens: g.Output.draw(m.outputs),
		}
		r.Segments = m.prompt(heads[k], r.PromptTokens)
		m.add(r)
	}
	return m.out, nil
}

// Adapters alternates between adapters, the worst order for endpoints that hold only a few at a time. Every adapter has
// one system prompt; blocks are never shared between adapters, nor with the base model.
//
// Statistics with the defaults: 10 requests/s, gap CV 1; 9 adapters, strictly one after the other (an odd number, lest rotation
// over 2, 8 or 32 endpoints keep each adapter where it is); prompts are 500 tokens
// of system prompt and a lognormal rest, median 400; outputs lognormal, median 150.
//
// Adapters is a plain value.
type Adapters struct {
	// Load; the default rate is 10.
	Load Load
	// Adapters is how many there are, "adapter-0" with the digest "digest-0" and so on, 1 to 1e6; 0 = 9.
	Adapters int
	// Burst is how many requests in a row have the same one, 1 to 1e6; 0 = 1.
	Burst int
	// SystemTokens is the length of the system prompt, 1 to 1e6; 0 = 500.
	SystemTokens int
	// Rest is what follows it; default median 400, sigma 0.8, 1 to 8000 tokens.
	Rest Length
	// Output; default median 150, sigma 0.7, 1 to 2000 tokens.
	Output Length
}

// Generate makes the workload.
func (g Adapters) Generate() (Workload, error) {
	g.Adapters = orInt(g.Adapters, 9)
	g.Burst = orInt(g.Burst, 1)
	g.SystemTokens = orInt(g.SystemTokens, 500)
	err := firstOf(g.Load.fill(10),
		inRange("Adapters", float64(g.Adapters), 1, 1e6),
		inRange("Burst", float64(g.Burst), 1, 1e6),
		inRange("SystemTokens", float64(g.SystemTokens), 1, 1e6),
		fillLength("Rest", &g.Rest, Length{Median: 400, Sigma: 0.8, Max: 8000}),
		fillLength("Output", &g.Output, Length{Median: 150, Sigma: 0.7, Max: 2000}))
	if err != nil {
		return nil, err
	}
	m := newMaker(g, g.Load)
	// One number serves all adapters: their digests keep the ids apart.
	head := m.fresh(int64(g.SystemTokens) / BlockTokens)
	names, digests := make([]string, g.Adapters), make([]string, g.Adapters)
	for k := range names {
		names[k], digests[k] = fmt.Sprintf("adapter-%d", k), fmt.Sprintf("digest-%d", k)
	}
	clock := m.poisson(g.Load.Rate)
	for i := range g.Load.Requests {
		k := i / g.Burst % g.Adapters
		r := Request{
			Arrival:       clock.next(),
			PromptTokens:  int64(g.SystemTokens) + g.Rest.draw(m.prompts),
			OutputTokens:  g.Output.draw(m.outputs),
			Adapter:       names[k],
			AdapterDigest: digests[k],
		}
		r.Segments = m.prompt(head, r.PromptTokens)
		m.add(r)
	}
	return m.out, nil
}

// TenantSkew has one tenant that sends most requests, and longer ones, beside others that send few small ones: whoever
// cares only for totals lets the small ones wait.
//
// Statistics with the defaults: 12 requests/s, gap CV 1; "tenant-0" sends 70 % of them, the other 9 tenants an equal part
// of the rest; prompts lognormal, median 2500 of the heavy one and 300 of the others; outputs lognormal, median 150;
// no hits.
//
// TenantSkew is a plain value.
type TenantSkew struct {
	// Load; the default rate is 12.
	Load Load
	// Tenants is how many there are, 2 to 1e6; 0 = 10.
	Tenants int
	// Share of the requests that the heavy one sends, above 0 and at most 1; 0 = 0.7.
	Share float64
	// Heavy is the prompt of the heavy one; default median 2500, sigma 0.6, 16 to 30,000 tokens.
	Heavy Length
	// Light is the prompt of the others; default median 300, sigma 0.6, 16 to 4000 tokens.
	Light Length
	// Output; default median 150, sigma 0.7, 1 to 2000 tokens.
	Output Length
}

// Generate makes the workload.
func (g TenantSkew) Generate() (Workload, error) {
	g.Tenants = orInt(g.Tenants, 10)
	g.Share = orFloat(g.Share, 0.7)
	err := firstOf(g.Load.fill(12),
		inRange("Tenants", float64(g.Tenants), 2, 1e6),
		inRange("Share", g.Share, 0, 1),
		fillLength("Heavy", &g.Heavy, Length{Median: 2500, Sigma: 0.6, Min: 16, Max: 30_000}),
		fillLength("Light", &g.Light, Length{Median: 300, Sigma: 0.6, Min: 16, Max: 4000}),
		fillLength("Output", &g.Output, Length{Median: 150, Sigma: 0.7, Max: 2000}))
	if err != nil {
		return nil, err
	}
	m := newMaker(g, g.Load)
	names := make([]string, g.Tenants)
	for k := range names {
		names[k] = fmt.Sprintf("tenant-%d", k)
	}
	clock := m.poisson(g.Load.Rate)
	for range g.Load.Requests {
		k, length := 0, g.Heavy
		u, other := m.choices.Float64(), 1+m.choices.IntN(g.Tenants-1)
		if u >= g.Share {
			k, length = other, g.Light
		}
		r := Request{
			Arrival:      clock.next(),
			PromptTokens: length.draw(m.prompts),
			OutputTokens: g.Output.draw(m.outputs),
			Tenant:       names[k],
		}
		r.Segments = m.prompt(Segment{}, r.PromptTokens)
		m.add(r)
	}
	return m.out, nil
}

// InteractiveBatch mixes people who wait for an answer with bulk work that has time: chats with a short deadline all the
// time, and every minute a batch of long requests at once.
//
// Statistics with the defaults: interactive requests (class interactive, label "interactive", tenant "people", deadline
// 10 s) at 8/s, gap CV 1, prompts lognormal, median 500, outputs median 120; batches (class batch, label "batch", tenant
// "bulk", deadline 10 min) of 120 every 60 s, each at one moment, the first at 30 s, prompts median 4000, outputs median 400.
//
// InteractiveBatch is a plain value.
type InteractiveBatch struct {
	// Load: Requests counts both kinds, Rate is that of the interactive ones, by default 8.
	Load Load
	// Every is the time between batches; 0 = 60 s. The first comes after half of it.
	Every time.Duration
	// Size is the number of requests in a batch, 1 to 1e6; 0 = 120.
	Size int
	// Soon and Late are the deadlines of interactive and batch requests; 0 = 10 s and 10 min.
	Soon time.Duration
	Late time.Duration
	// Prompt, Output of the interactive ones; default median 500, sigma 0.8, 16 to 8000, and median 120, sigma 0.7, up to 1000.
	Prompt Length
	Output Length
	// BatchPrompt, BatchOutput; default median 4000, sigma 0.6, 64 to 40,000, and median 400, sigma 0.5, up to 3000 tokens.
	BatchPrompt Length
	BatchOutput Length
}

// Generate makes the workload.
func (g InteractiveBatch) Generate() (Workload, error) {
	g.Every = orDuration(g.Every, time.Minute)
	g.Size = orInt(g.Size, 120)
	g.Soon = orDuration(g.Soon, 10*time.Second)
	g.Late = orDuration(g.Late, 10*time.Minute)
	err := firstOf(g.Load.fill(8),
		inRange("Every (s)", g.Every.Seconds(), 1e-3, 1e6),
		inRange("Size", float64(g.Size), 1, 1e6),
		inRange("Soon (s)", g.Soon.Seconds(), 1e-9, 1e6),
		inRange("Late (s)", g.Late.Seconds(), 1e-9, 1e6),
		fillLength("Prompt", &g.Prompt, Length{Median: 500, Sigma: 0.8, Min: 16, Max: 8000}),
		fillLength("Output", &g.Output, Length{Median: 120, Sigma: 0.7, Max: 1000}),
		fillLength("BatchPrompt", &g.BatchPrompt, Length{Median: 4000, Sigma: 0.6, Min: 64, Max: 40_000}),
		fillLength("BatchOutput", &g.BatchOutput, Length{Median: 400, Sigma: 0.5, Max: 3000}))
	if err != nil {
		return nil, err
	}
	m := newMaker(g, g.Load)
	clock := m.poisson(g.Load.Rate)
	person := clock.next()
	batch := g.Every / 2
	for len(m.out) < g.Load.Requests {
		r := Request{Class: ClassInteractive, Label: "interactive", Tenant: "people", Deadline: g.Soon}
		n, prompt, output := 1, g.Prompt, g.Output
		r.Arrival = person
		if batch <= person {
			r = Request{Class: ClassBatch, Label: "batch", Tenant: "bulk", Deadline: g.Late, Arrival: batch}
			n, prompt, output = min(g.Size, g.Load.Requests-len(m.out)), g.BatchPrompt, g.BatchOutput
			batch += g.Every
		} else {
			person = clock.next()
		}
		for range n {
			r.PromptTokens, r.OutputTokens = prompt.draw(m.prompts), output.draw(m.outputs)
			r.Segments = m.prompt(Segment{}, r.PromptTokens)
			m.add(r)
		}
	}
	return m.out, nil
}
