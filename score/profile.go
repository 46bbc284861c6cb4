package score

import (
	"errors"
	"fmt"
	"slices"
)

// Profile holds the capacities of an engine: how long work takes there when there is work, not what it happens to deliver
// at the moment. A momentary throughput of a half idle engine is not a capacity.
//
// One pass of an engine takes, after the measurements published for vLLM and scaled profiles of other accelerators,
//
//	T = Base + PrefillToken*n + KVToken*sum(ctx of decodes) + Attention*sum(t*(done+t/2)) + Sequence*B
//
// with n new tokens, t the tokens of a prefill chunk, done the context before it and B sequences in the pass.
//
// The zero value stands for [DefaultProfile]: when all five timings are zero, the default's are used. A profile with any
// timing set is taken literally, and a timing left at zero costs nothing. A Profile is a plain value.
type Profile struct {
	// Base is the time of a pass that holds a single decode, ms per output token at batch 1.
	Base float64 `json:"base_ms"`
	// PrefillToken is the time of one uncached prompt token, ms. 1000/PrefillToken is the prefill rate in tokens/s.
	PrefillToken float64 `json:"prefill_ms_per_token"`
	// KVToken is what one token of context adds to every pass in which it is read, ms.
	KVToken float64 `json:"kv_ms_per_token"`
	// Attention is what a prompt token costs for each token of context before it, ms.
	Attention float64 `json:"attention_ms_per_token_ctx"`
	// Sequence is what each sequence in a pass adds to it, ms.
	Sequence float64 `json:"sequence_ms"`

	// KVCapacity is the KV memory in tokens; 0 = unknown, then a figure reported by the engine is used, else memory is
	// not part of the cost.
	KVCapacity int64 `json:"kv_capacity,omitempty"`
	// BlockSize is the number of tokens in a block of the engine's prefix cache; 0 = 16.
	BlockSize int `json:"block_size,omitempty"`
	// MaxRunning is the number of sequences that the engine runs at once; 0 = unknown.
	MaxRunning int64 `json:"max_running,omitempty"`
	// AdapterLoad is the time of loading an adapter that is not resident, ms; 0 = 1000 where an adapter is asked for.
	AdapterLoad float64 `json:"adapter_load_ms,omitempty"`
}

const (
	// DefaultBlockSize is the block size of a profile that names none, in tokens.
	DefaultBlockSize = 16
	// DefaultAdapterLoad is the cold load time of an adapter where the profile names none, ms.
	DefaultAdapterLoad = 1000.0
	// DefaultProfile is the name of the profile that a zero Profile stands for.
	DefaultProfile = "h100-8b"
)

// named returns a published profile. rtx4090-8b and rtxpro6000-8b have been checked against measured engines, the others
// are consistent scalings of them.
func named(name string) (Profile, bool) {
	for _, p := range published() {
		if p.name == name {
			return p.Profile, true
		}
	}
	return Profile{}, false
}

type namedProfile struct {
	name string
	Profile
}

func published() [6]namedProfile {
	return [...]namedProfile{
		{"rtx4090-8b", Profile{
			Base: 16.6, PrefillToken: 0.0880, KVToken: 1.63e-4, Attention: 3.9e-6, Sequence: 0.02,
			KVCapacity: 41_408, MaxRunning: 256,
		}},
		{"rtxpro6000-8b", Profile{
			Base: 10.9, PrefillToken: 0.0358, KVToken: 1.08e-4, Attention: 2.0e-6, Sequence: 0.03,
			KVCapacity: 500_000, MaxRunning: 128,
		}},
		{"h100-8b", Profile{
			Base: 6.8, PrefillToken: 0.030, KVToken: 5.1e-5, Attention: 1.2e-6, Sequence: 0.02,
			KVCapacity: 421_011, MaxRunning: 256,
		}},
		{"h100-70b-tp4", Profile{
			Base: 16.6, PrefillToken: 0.070, KVToken: 3.2e-5, Attention: 1.5e-6, Sequence: 0.02,
			KVCapacity: 487_214, MaxRunning: 256,
		}},
		{"a100-8b", Profile{
			Base: 10.5, PrefillToken: 0.0675, KVToken: 8.4e-5, Attention: 3.4e-6, Sequence: 0.02,
			KVCapacity: 421_011, MaxRunning: 256,
		}},
		{"a100-70b-tp4", Profile{
			Base: 26.0, PrefillToken: 0.161, KVToken: 5.2e-5, Attention: 4.2e-6, Sequence: 0.02,
			KVCapacity: 487_214, MaxRunning: 256,
		}},
	}
}

// ProfileNames lists the names that [ProfileByName] knows, sorted.
func ProfileNames() []string {
	var names []string
	for _, p := range published() {
		names = append(names, p.name)
	}
	slices.Sort(names)
	return names
}

// ProfileByName returns the profile of an accelerator and model size, e.g. "h100-8b". Its KV capacity and running limit
// are those of the published set-up: set your own where they differ. An unknown name is an error that lists the known.
func ProfileByName(name string) (Profile, error) {
	p, ok := named(name)
	if !ok {
		return Profile{}, fmt.Errorf("score: profile %q is not one of %v", name, ProfileNames())
	}
	p.BlockSize = DefaultBlockSize
	return p, nil
}

// FromRates makes a profile from the two rates an operator knows: prefillRate in prompt tokens per second of a busy
// engine, and decodeMS, the time per output token at batch 1 in ms. A prompt of n tokens then takes n/prefillRate. What a
// further sequence and a token of context add to a decode step is scaled from the default profile (0.3 % of decodeMS a
// sequence, 7.5e-6 of it a token). Neither figure may be negative, NaN or infinite; a zero one falls back to the default
// profile's.
func FromRates(prefillRate, decodeMS float64) (Profile, error) {
	if !nonNegative(prefillRate) {
		return Profile{}, fmt.Errorf("score: prefill rate %v tokens/s is not a number of at least 0", prefillRate)
	}
	if !nonNegative(decodeMS) {
		return Profile{}, fmt.Errorf("score: decode time %v ms is not a number of at least 0", decodeMS)
	}
	def, _ := named(DefaultProfile)
	p := Profile{PrefillToken: def.PrefillToken, Base: def.Base}
	if prefillRate > 0 {
		p.PrefillToken = 1000 / prefillRate
	}
	if decodeMS > 0 {
		p.Base = decodeMS
	}
	p.Sequence = p.Base * (def.Sequence / def.Base)
	p.KVToken = p.Base * (def.KVToken / def.Base)
	return p, nil
}

// maxTiming bounds every timing of a profile, ms, so that no cost leaves the range of a float64.
const maxTiming = 1e6

func nonNegative(v float64) bool { return v >= 0 && v <= maxFigure }

// Validate reports every field that is negative, NaN or too large (timings above 1e6 ms, sizes above 1e15), all of them
// joined.
func (p Profile) Validate() error {
	var faults []error
	for _, f := range []struct {
		name       string
		value, top float64
	}{
		{"Base", p.Base, maxTiming}, {"PrefillToken", p.PrefillToken, maxTiming}, {"KVToken", p.KVToken, maxTiming},
		{"Attention", p.Attention, maxTiming}, {"Sequence", p.Sequence, maxTiming},
		{"AdapterLoad", p.AdapterLoad, 1e3 * maxTiming},
		{"KVCapacity", float64(p.KVCapacity), maxFigure}, {"BlockSize", float64(p.BlockSize), maxFigure},
		{"MaxRunning", float64(p.MaxRunning), maxFigure},
	} {
		if !(f.value >= 0 && f.value <= f.top) {
			faults = append(faults, fmt.Errorf("score: Profile.%s = %v must be a number from 0 to %g", f.name, f.value, f.top))
		}
	}
	return errors.Join(faults...)
}

// WithDefaults fills in what the zero value stands for: the default timings when none is set, the block size and the
// adapter load time. The KV capacity and the running limit stay unknown where they are.
func (p Profile) WithDefaults() Profile {
	if p.Base == 0 && p.PrefillToken == 0 && p.KVToken == 0 && p.Attention == 0 && p.Sequence == 0 {
		def, _ := named(DefaultProfile)
		p.Base, p.PrefillToken, p.KVToken, p.Attention, p.Sequence = def.Base, def.PrefillToken, def.KVToken, def.Attention, def.Sequence
	}
	if p.BlockSize == 0 {
		p.BlockSize = DefaultBlockSize
	}
	if p.AdapterLoad == 0 {
		p.AdapterLoad = DefaultAdapterLoad
	}
	return p
}

// PrefillMS is the time of n uncached prompt tokens behind ctx tokens of context that is there already, ms:
// c n + pa n (ctx + n/2), the prefill part of a pass summed over its chunks. Monotone in both.
func (p *Profile) PrefillMS(n, ctx float64) float64 {
	if n <= 0 {
		return 0
	}
	return float64(n * (p.PrefillToken + float64(p.Attention*(ctx+float64(n*0.5)))))
}

// TokenMS is the time per output token in a batch of that many sequences which together read that many tokens of context,
// ms: base + kv sum(ctx) + seq B.
func (p *Profile) TokenMS(batch, context float64) float64 {
	return p.Base + float64(p.KVToken*context) + float64(p.Sequence*batch)
}
