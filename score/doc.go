// Package score is the cost model: what serving one request on one engine would cost, in named terms, every one of them
// in milliseconds.
//
// A [Profile] holds the capacities of an engine: how long a prompt token, a decode step, a token of context takes. A
// [Load] says what is there already, a [Request] what would come, a [Freshness] how far the load can be believed. From
// them a [Quote], one request priced for one profile by [Model.Quote], computes [Terms]:
//
//	Queue         predicted time of the prefill work that is pending there, and until a slot is free on a full engine
//	Prefill       predicted time of the request's own uncached tokens; Saved is what its cached tokens avoid
//	Decode        expected output times the time per token at the projected batch and context
//	Adapter       cold load of the adapter times the probability that it is needed
//	KVPressure    w k/(1-k), k being the projected share of KV memory in use
//	Uncertainty   grows with the age of what is known
//	Interference  what the request does to those already there
//	Displacement  what its uncached work costs those who come later
//	Wait          price of Queue and Adapter, where there is nothing to show, beyond the time itself
//	Policy        an adjustment of a named policy, kept apart
//
// The first six are the request's own predicted completion ([Terms.Own]); Interference and Displacement are what others
// pay ([Terms.External]). Nothing is normalised: two candidates, two pools or two days can be compared.
//
// The model is a pure function. It never fails and never returns a NaN or an infinity: figures outside their range are
// brought into it, see [Load] and [Request]. More backlog, an older snapshot, less cache, fuller memory and a slower
// profile never improve a candidate.
//
// Any number of goroutines may use the types of this package as long as nobody writes to them.
package score
