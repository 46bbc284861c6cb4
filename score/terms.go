package score

import (
	"math"
	"time"

	"github.com/isobar-go/isobar/telemetry"
)

// Request is what is asked of an engine. Negative and NaN figures count as 0, infinite ones as 1e15.
// A Request is a plain value.
type Request struct {
	// Prompt is the length of the prompt, tokens.
	Prompt float64
	// Output is the expected length of the output, tokens.
	Output float64
	// Adapter says that the request needs one.
	Adapter bool
}

// Match is what the engine has of the request already. Negative and NaN figures count as 0. A Match is a plain value.
type Match struct {
	// Cached is the number of leading prompt tokens in the engine's prefix cache; never more than the prompt counts.
	Cached float64
	// Withheld says that the cached tokens must not count, for instance because of pressure bounds.
	Withheld bool
	// AnyAge says that the cached tokens count although the load readings are not fresh, for instance since those of no other are fresher.
	AnyAge bool
	// AdapterNeeded is the probability that the adapter must be loaded, 0 (resident) to 1 (certainly cold).
	AdapterNeeded float64
}

// counts says whether the cached tokens do, beside load readings of that freshness.
func (m *Match) counts(f Freshness) bool {
	return !m.Withheld && (m.AnyAge || f.Class == telemetry.Fresh)
}

// Load is what an engine has to do already, without the request in question. Negative and NaN figures count as 0, infinite
// ones as 1e15. A Load is a plain value.
type Load struct {
	// Requests is the number of requests that run or wait there.
	Requests float64
	// PendingPrefill is the number of uncached prompt tokens that are still to be computed.
	PendingPrefill float64
	// Shared is the number of context tokens beyond KV that decodes there read: prefixes that several requests have in common take
	// memory once, but each of them reads it.
	Shared float64 `json:",omitempty"`
	// Output is the mean output of the requests there, tokens: by it, full slots become free. 0 = not known, and no slot is
	// taken to be waited for.
	Output float64 `json:",omitempty"`
	// Silence is for how much longer than usual the engine has given no sign of life while requests wait there, ms. Of what has lasted
	// for some time, nothing better is known than that it will last as long again: it adds to Queue.
	Silence float64 `json:",omitempty"`
	// KV is the memory in use, tokens.
	KV float64
	// KVCapacity is the size of that memory, tokens; 0 = unknown, then KVShare says how full it is.
	KVCapacity float64
	// KVShare is used where KVCapacity is 0: the share of KV memory in use, 0 to 1, 0 also where nothing is known.
	KVShare float64
}

// Freshness says how far a load can be believed. A Freshness is a plain value.
type Freshness struct {
	// Class of the load readings. The zero value is Missing.
	Class telemetry.Class
	// Age of the load readings; of no meaning when they are missing. A negative age counts as stale.
	Age time.Duration
	// FreshFor is the age up to which readings of this engine are fresh; 0 or less = that of the model.
	FreshFor time.Duration
}

// Terms are the costs of one candidate, each in ms, finite and, but for Policy, not negative. A Terms is a plain value.
type Terms struct {
	// Queue is the predicted time of the prefill work pending there, and where the engine runs as many requests as it can at once,
	// that until one of its slots is free; and the silence of an engine that gives no sign of life.
	Queue float64 `json:"queue"`
	// Prefill is the predicted time of the request's own uncached tokens.
	Prefill float64 `json:"prefill"`
	// Saved is the prefill time that the cached tokens avoid; it is not part of any sum, since Prefill is without it.
	Saved float64 `json:"saved"`
	// Decode is the expected output times the time per token at the projected batch and context.
	Decode float64 `json:"decode"`
	// Adapter is the adapter's load time times the probability that it is needed.
	Adapter float64 `json:"adapter"`
	// KVPressure is w k/(1-k), k being the projected KV share; above k = 0.99 it goes on as a straight line.
	KVPressure float64 `json:"kv_pressure"`
	// Uncertainty is what the age of the load readings adds.
	Uncertainty float64 `json:"uncertainty"`
	// Interference is what the request costs those who are there: its prefill stalls, its context slows their tokens.
	Interference float64 `json:"interference"`
	// Displacement is what its uncached work costs those who come later.
	Displacement float64 `json:"displacement"`
	// Wait is the price of waiting with nothing to show, beyond the time itself, which is Queue and Adapter: see [Weights].
	Wait float64 `json:"wait"`
	// Policy is an adjustment for priority or fairness, apart from what execution costs. May be negative. Nothing in this
	// library sets it so far.
	Policy float64 `json:"policy"`
}

// Native are the figures from which [Terms] are computed, each in its own unit. A Native is a plain value.
type Native struct {
	// PendingTokens is the figure of Queue, tokens; the wait for a slot follows from Batch, and a silence is in ms as it is.
	PendingTokens float64 `json:"pending_tokens"`
	// UncachedTokens is the figure of Prefill and Displacement, tokens.
	UncachedTokens float64 `json:"uncached_tokens"`
	// CachedTokens is the figure of Saved, tokens; 0 when it does not count.
	CachedTokens float64 `json:"cached_tokens"`
	// OutputTokens is the figure of Decode, tokens.
	OutputTokens float64 `json:"output_tokens"`
	// KVShare is the figure of KVPressure: the projected share, which may exceed 1.
	KVShare float64 `json:"kv_share"`
	// Batch is the figure of Interference: the requests there.
	Batch float64 `json:"batch"`
	// AdapterNeeded is the figure of Adapter, a probability.
	AdapterNeeded float64 `json:"adapter_needed,omitempty"`
}

// Own is the request's own predicted completion, ms.
func (t *Terms) Own() float64 {
	return t.Queue + t.Prefill + t.Decode + t.Adapter + t.KVPressure + t.Uncertainty
}

// External is what others pay for the choice, ms.
func (t *Terms) External() float64 { return t.Interference + t.Displacement }

// Total is what the choice costs everybody, ms: Own + External + Wait + Policy.
func (t *Terms) Total() float64 { return t.Own() + t.External() + t.Wait + t.Policy }

// Start is the predicted time to the first token, ms: Queue + Prefill + Adapter.
func (t *Terms) Start() float64 { return t.Queue + t.Prefill + t.Adapter }

// Weights are the coefficients of the terms that are not physics. The zero value of a field is its default; a negative
// value is zero, which switches the term off. A Weights is a plain value.
type Weights struct {
	// Interference is the share of the requests there that pay for the newcomer's stalls and context; default 1.
	Interference float64
	// Displacement is the cost to later requests, as a multiple of Prefill; default 8.
	Displacement float64
	// Wait is the price of the time before the request's own work begins, as a multiple of Queue + Adapter; default 10. Together
	// with Displacement it makes the time to the first token count for more than that between tokens: a caller who waits for the
	// first one has nothing, what is before it in the queue keeps others waiting, too, and a difference between queues is
	// there at once, while one between batches has been levelled by later requests long before the output is complete.
	Wait float64
	// KVPressure is w of w k/(1-k), ms; default 100: 100 ms at half full, 900 at 90 %, 9900 at 99 %.
	KVPressure float64
	// Uncertainty is the cost of not knowing, ms per second of age beyond FreshFor; default 200. Missing and stale
	// readings cost what one at the edge of staleness costs: 1600 ms with the default limits.
	Uncertainty float64
}

// MaxWeight bounds every weight, so that no cost leaves the range of a float64; larger ones count as it.
const MaxWeight = 1e6

// WithDefaults replaces zero fields by their defaults. Negative ones, which stand for zero, become -1, so that the result
// means the same when it is used again.
func (w Weights) WithDefaults() Weights {
	for _, f := range []struct {
		v   *float64
		def float64
	}{{&w.Interference, 1}, {&w.Displacement, 8}, {&w.Wait, 10}, {&w.KVPressure, 100}, {&w.Uncertainty, 200}} {
		switch {
		case *f.v == 0 || math.IsNaN(*f.v):
			*f.v = f.def
		case *f.v < 0:
			*f.v = -1
		}
	}
	return w
}

// maxFigure bounds every figure that enters the model, so that no product of theirs leaves the range of a float64.
const maxFigure = 1e15

func clamp(v float64) float64 {
	if !(v > 0) { // NaN too
		return 0
	}
	if v > maxFigure {
		return maxFigure
	}
	return v
}

// Model computes the terms of a candidate under one set of weights and freshness limits. Its zero value is not usable:
// make it with [NewModel]. A Model is immutable; any number of goroutines may use it.
type Model struct {
	w          Weights
	freshFor   float64 // seconds
	staleAfter float64 // seconds
}

// NewModel makes a model from weights and freshness limits; zero values are the defaults of both.
func NewModel(w Weights, l telemetry.Limits) *Model {
	l = l.Effective()
	w = w.WithDefaults()
	for _, v := range []*float64{&w.Interference, &w.Displacement, &w.Wait, &w.KVPressure, &w.Uncertainty} {
		*v = min(max(*v, 0), MaxWeight)
	}
	return &Model{w: w, freshFor: l.FreshFor.Seconds(), staleAfter: l.StaleAfter.Seconds()}
}

// Weights returns the weights in effect; 0 is a term that is off.
func (m *Model) Weights() Weights { return m.w }

// UncertaintyMS is the cost of a load reading of that freshness, ms: 0 while fresh, then growing with age up to the one of
// stale and missing readings.
func (m *Model) UncertaintyMS(f Freshness) float64 {
	switch f.Class {
	case telemetry.Fresh:
		return 0
	case telemetry.Aging:
		freshFor := m.freshFor
		if f.FreshFor > 0 {
			freshFor = f.FreshFor.Seconds()
		}
		over := min(max(f.Age.Seconds()-freshFor, 0), m.staleAfter-m.freshFor)
		return float64(m.w.Uncertainty * over)
	}
	return float64(m.w.Uncertainty * (m.staleAfter - m.freshFor))
}

// Quote is one request priced for one profile: what does not depend on a candidate's load, computed once. Make it with
// [Model.Quote]. A Quote is immutable; any number of goroutines may use it. It keeps a pointer to the profile and the
// model.
type Quote struct {
	m              *Model
	p              *Profile
	prompt, output float64
	cold           float64 // prefill of the whole prompt, ms
	decode         float64 // of a request alone, but for its sequence, ms
	decodeSequence float64 // more for each sequence in the batch, ms
	decodeKV       float64 // more for each token of others' context, ms
	stall          float64 // what its tokens and context add to the decodes of one other request, ms
	maxRunning     float64
	adapter        bool
}

// Quote prices a request for a profile, which must have its defaults filled in ([Profile.WithDefaults]).
func (m *Model) Quote(p *Profile, r *Request) Quote {
	q := Quote{m: m, p: p, prompt: clamp(r.Prompt), output: clamp(r.Output), adapter: r.Adapter, maxRunning: maxFigure}
	q.cold = p.PrefillMS(q.prompt, 0)
	q.decode = float64(q.output * p.TokenMS(0, q.prompt))
	q.decodeSequence, q.decodeKV = q.output*p.Sequence, q.output*p.KVToken
	q.stall = float64(q.output * (float64(p.KVToken*q.prompt) + p.Sequence))
	if p.MaxRunning > 0 {
		q.maxRunning = float64(p.MaxRunning)
	}
	return q
}

// Profile is the profile that the request was priced for.
func (q *Quote) Profile() *Profile { return q.p }

// Native brings the figures of a candidate into their ranges: what [Quote.Terms] computes with. The cached tokens count only
// when the load is Fresh, or the match says AnyAge, and they are not withheld.
func (q *Quote) Native(l *Load, f Freshness, mt Match) Native {
	n := Native{PendingTokens: clamp(l.PendingPrefill), OutputTokens: q.output, Batch: clamp(l.Requests)}
	if mt.counts(f) {
		n.CachedTokens = min(clamp(mt.Cached), q.prompt)
	}
	n.UncachedTokens = q.prompt - n.CachedTokens
	if q.adapter {
		n.AdapterNeeded = min(clamp(mt.AdapterNeeded), 1)
	}
	n.KVShare = q.kvShare(l, clamp(l.KV))
	return n
}

func (q *Quote) kvShare(l *Load, kv float64) float64 {
	if l.KVCapacity > 0 {
		return clamp((kv + q.prompt + q.output) / l.KVCapacity)
	}
	return min(clamp(l.KVShare), 1)
}

// slotWait is how long the request waits until it is among those that the engine runs at once: as many of those before it as are
// too many have to end, and one of a full batch ends after each mean output divided by their number.
func (q *Quote) slotWait(l *Load, batch, kv float64) float64 {
	ahead := batch + 1 - q.maxRunning
	if ahead <= 0 {
		return 0
	}
	return float64(ahead / q.maxRunning * float64(clamp(l.Output)*q.p.TokenMS(q.maxRunning, kv+clamp(l.Shared))))
}

// Terms computes the cost of one candidate into t. Every product is rounded before it is added, here and in Totals, so that no
// processor fuses the two into one operation and comes to another last bit.
func (q *Quote) Terms(l *Load, f Freshness, mt Match, t *Terms) {
	batch, kv := clamp(l.Requests), clamp(l.KV)
	t.Queue = float64(clamp(l.PendingPrefill)*q.p.PrefillToken) + q.slotWait(l, batch, kv)
	t.Queue += clamp(l.Silence)
	t.Prefill, t.Saved = q.cold, 0
	if mt.Cached > 0 && mt.counts(f) {
		cached := min(mt.Cached, q.prompt)
		t.Prefill = q.p.PrefillMS(q.prompt-cached, cached)
		t.Saved = max(0, q.cold-t.Prefill)
	}
	t.Decode = q.decode + float64(q.decodeSequence*min(batch+1, q.maxRunning)) + float64(q.decodeKV*(kv+clamp(l.Shared)))
	t.Adapter = 0
	if q.adapter {
		t.Adapter = float64(q.p.AdapterLoad * min(clamp(mt.AdapterNeeded), 1))
	}
	t.KVPressure = float64(q.m.w.KVPressure * occupancy(q.kvShare(l, kv)))
	t.Uncertainty = 0
	if f.Class != telemetry.Fresh {
		t.Uncertainty = q.m.UncertaintyMS(f)
	}
	t.Interference = float64(q.m.w.Interference * batch * (t.Prefill + q.stall))
	t.Displacement = float64(q.m.w.Displacement * t.Prefill)
	t.Wait = float64(q.m.w.Wait * (t.Queue + t.Adapter))
	t.Policy = 0
}

// Totals are the three figures by which candidates compare, the same to the last bit as those of [Quote.Terms]: Queue, Own and
// Total, ms. It is for choosing among many, where nobody looks at the terms of most, and takes the cached tokens that
// count, from 0 to the length of the prompt, the probability of an adapter's load, and the uncertainty in ms.
func (q *Quote) Totals(l *Load, cached, adapterNeeded, uncertainty float64) (queue, own, total float64) {
	batch, kv := clamp(l.Requests), clamp(l.KV)
	queue = float64(clamp(l.PendingPrefill) * q.p.PrefillToken)
	prefill := q.cold
	if cached > 0 {
		prefill = q.p.PrefillMS(q.prompt-cached, cached)
	}
	running := batch + 1
	if running > q.maxRunning {
		running = q.maxRunning
		queue += q.slotWait(l, batch, kv)
	}
	queue += clamp(l.Silence)
	own = queue + prefill + (q.decode + float64(q.decodeSequence*running) + float64(q.decodeKV*(kv+clamp(l.Shared))))
	wait := queue
	if q.adapter {
		load := float64(q.p.AdapterLoad * min(clamp(adapterNeeded), 1))
		own += load
		wait += load
	}
	own += float64(q.m.w.KVPressure * occupancy(q.kvShare(l, kv)))
	own += uncertainty
	others := float64(q.m.w.Interference*batch*(prefill+q.stall)) + float64(q.m.w.Displacement*prefill)
	return queue, own, own + others + float64(q.m.w.Wait*wait)
}

// occupancy is k/(1-k) up to 0.99 and a straight line from there, so that engines beyond their memory still compare.
func occupancy(k float64) float64 {
	const knee, slope = 0.99, 1000
	if k <= knee {
		return k / (1 - k)
	}
	return knee/(1-knee) + float64(slope*(k-knee))
}
