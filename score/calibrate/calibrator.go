package calibrate

import (
	"sync"
	"time"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// DefaultKeep is the number of receipts that a Calibrator remembers where Keep is 0; they take about 40 MB.
const DefaultKeep = 200_000

// Calibrator remembers what was predicted and what came of it, and fits profiles to that. The zero value is usable. It is a
// [router.Observer]: set as Config.Receipts.Observer it learns from every lease that ends. Any number of goroutines may use it
// at once, as soon as Keep is set.
type Calibrator struct {
	// Keep is how many usable receipts are remembered, the newest; 0 or less = DefaultKeep. Set it before the first use.
	Keep int

	mu      sync.Mutex
	samples []sample // a ring once there are Keep
	next    int      // the oldest of a full ring
	units   map[unitKey]*unit
	added   int
	left    [leftReasons]int
}

// unitKey is one life of an endpoint.
type unitKey struct{ endpoint, incarnation string }

// unit is what the samples of one life of an endpoint have in common.
type unit struct {
	unitKey
	profile score.Profile // the newest seen, defaults filled in
	at      time.Time     // of the decision that it is of
	samples int
	cached  bool // its engine says how many prompt tokens came from the cache
}

// sample is what is kept of a receipt. Lengths are in tokens, times in ms.
type sample struct {
	unit                   *unit
	class                  router.Class
	loadKnown              bool
	bucket                 int64
	hash                   uint64 // of its identity, for the splits
	prompt                 float64
	cached                 float64 // as the prefix index had it
	usedPrompt, usedCached float64 // as the engine says; 0 = not known
	pending, batch, kv     float64 // the load it was decided on
	first, completion      float64
	tokens                 float64 // generated; 0 = not known
}

// Decided does nothing: only ends tell.
func (c *Calibrator) Decided(*router.Receipt) {}

// Ended adds the receipt.
func (c *Calibrator) Ended(r *router.Receipt) { c.Add(r) }

// Add takes what a receipt says and keeps nothing else of it. It returns why the receipt is left out, or Kept. A nil receipt counts
// as not ended.
func (c *Calibrator) Add(r *router.Receipt) Left {
	s, profile, why := sampleOf(r)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.added++
	if why == Kept {
		why = c.enrol(&s, r, profile)
	}
	if why != Kept {
		c.left[why]++
		return why
	}
	s.unit.samples++
	keep := c.Keep
	if keep <= 0 {
		keep = DefaultKeep
	}
	if len(c.samples) < keep {
		c.samples = append(c.samples, s)
		return Kept
	}
	c.drop(&c.samples[c.next])
	c.samples[c.next] = s
	c.next = (c.next + 1) % len(c.samples)
	return Kept
}

func (c *Calibrator) drop(s *sample) {
	c.left[Displaced]++
	if s.unit.samples--; s.unit.samples == 0 {
		delete(c.units, s.unit.unitKey)
	}
}

// enrol finds the sample's unit and brings it up to date.
func (c *Calibrator) enrol(s *sample, r *router.Receipt, profile *score.Profile) Left {
	key := unitKey{r.Endpoint, r.Incarnation}
	u := c.units[key]
	full := profile.WithDefaults()
	if u == nil || u.profile != full {
		if full.Validate() != nil {
			return BadFigures
		}
	}
	if u == nil {
		if c.units == nil {
			c.units = map[unitKey]*unit{}
		}
		u = &unit{unitKey: key, profile: full, at: r.At}
		c.units[key] = u
	}
	if !r.At.Before(u.at) {
		u.profile, u.at = full, r.At
	}
	u.cached = u.cached || s.usedCached > 0
	s.unit = u
	return Kept
}

// most bounds every figure of a sample, so that no sum of products of them leaves the range of a float64.
const most = 1e12

func plausible(values ...float64) bool {
	for _, v := range values {
		if !(v >= 0 && v <= most) { // NaN too
			return false
		}
	}
	return true
}

// sampleOf reads a receipt.
func sampleOf(r *router.Receipt) (sample, *score.Profile, Left) {
	switch {
	case r == nil || r.Rejected != "" || r.Outcome == nil:
		return sample{}, nil, NotEnded
	case r.Outcome.Cause != router.Completed:
		return sample{}, nil, NotCompleted
	case r.Probe:
		return sample{}, nil, Probe
	}
	chosen := chosenOf(r)
	if chosen == nil || chosen.Profile == nil {
		return sample{}, nil, NoCandidate
	}
	o, load := r.Outcome, &chosen.Load
	s := sample{
		class: r.Class, bucket: r.SizeBucket, hash: mix(r.Number ^ mix(uint64(r.At.UnixNano()))),
		loadKnown: r.Freshness >= telemetry.Aging,
		prompt:    float64(r.PromptTokens), cached: min(float64(r.Cached), float64(r.PromptTokens)),
		usedPrompt: float64(o.Usage.PromptTokens), usedCached: float64(o.Usage.CachedTokens),
		pending: load.PendingPrefill, batch: load.Requests, kv: load.KV + load.Shared,
		first: o.FirstTokenMS, completion: o.CompletionMS, tokens: float64(o.Usage.OutputTokens),
	}
	if s.tokens == 0 { // what the host has counted may lag behind, and is all there is
		s.tokens = float64(o.Tokens)
	}
	switch {
	case s.prompt == 0:
		return sample{}, nil, NoSize
	case s.first == 0:
		return sample{}, nil, NoFirstToken
	case !plausible(s.prompt, s.cached, s.usedPrompt, s.usedCached, s.pending, s.batch, s.kv, s.first, s.completion, s.tokens) ||
		s.first > s.completion:
		return sample{}, nil, BadFigures
	case r.Adapter && chosen.AdapterNeeded > negligible:
		return sample{}, nil, ColdAdapter
	case chosen.Profile.MaxRunning > 0 && load.Requests+1 > float64(chosen.Profile.MaxRunning):
		return sample{}, nil, FullEngine
	case load.Silence > 0:
		return sample{}, nil, SilentEngine
	}
	return s, chosen.Profile, Kept
}

// negligible is the probability of an adapter's load up to which it is taken not to have happened.
const negligible = 0.01

func chosenOf(r *router.Receipt) *router.Candidate {
	for i := range r.Candidates {
		if c := &r.Candidates[i]; c.ID == r.Endpoint && c.Incarnation == r.Incarnation {
			return c
		}
	}
	return nil
}

// mix is a bijection that spreads its input over all bits: the finaliser of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// point is a sample as a fit sees it, and what its unit adds.
type point struct {
	unit              int
	class             router.Class
	bucket            int64
	hash              uint64
	uncached, ctx     float64 // of the prompt, in tokens as the router counts them
	prompt            float64
	pending           float64
	batch, context    float64 // of the decode: sequences with its own, tokens with its prompt
	first, completion float64
	tokens            float64
	used              float64 // length of the prompt by the engine; 0 = not known
}

// pointOf says what of the prompt was cached by the engine's word where it has one, else by the index's.
//
// Lengths of prompts are often estimates of the host. The router multiplies these by the profile, so that a fit must do the
// same; the engine's own count only tells which share of the prompt was cached.
func pointOf(s *sample, number int) point {
	cached := s.cached
	if s.unit.cached && s.usedPrompt > 0 {
		cached = s.prompt * min(s.usedCached/s.usedPrompt, 1)
	}
	batch := s.batch + 1
	if most := float64(s.unit.profile.MaxRunning); most > 0 {
		batch = min(batch, most)
	}
	return point{
		unit: number, class: s.class, bucket: s.bucket, hash: s.hash, uncached: s.prompt - cached, ctx: cached, prompt: s.prompt,
		pending: s.pending, batch: batch, context: s.kv + s.prompt, first: s.first, completion: s.completion, tokens: s.tokens,
		used: s.usedPrompt,
	}
}
