// Package calibrate finds out how fast engines really are: it joins what a router predicted with what came of it, and fits the
// timings of a [score.Profile] to that.
//
// # What it does
//
//	var c calibrate.Calibrator
//	pool, err := router.New(router.Config{Receipts: router.Receipts{Observer: &c}})
//	...
//	report, err := c.Fit(calibrate.Options{})
//
// A [Calibrator] takes receipts: live as the observer of a pool, or from a file of JSON Lines ([Calibrator.AddLines], [Reader]).
// [Calibrator.Fit] splits them into two halves by a hash of their numbers, fits one, and adopts what it found only where
// predictions for the other half become better: the mean error by more than [Options].MinGain and by more than
// [Options].Noise standard errors, the median error too, and likewise on further splits. The [Report] says by how much, for
// whom not and why not, and how far off predictions are by class, size and endpoint.
//
// # What is fitted
//
// The formulas are those of the cost model. For the time to the first token, ms,
//
//	first = overhead + queue*pending + c*n + pa*n*(ctx + n/2)
//
// with n uncached and ctx cached tokens of the prompt and pending the tokens that were to be computed before it; and for the rest
//
//	completion - first = (tokens - 1) * (base + kv*context + seq*batch)
//
// with the load of the decision. c, pa, base, kv and seq are the profile's. Overhead and queue are not part of a profile;
// they keep the network and a miscounted queue out of the price of a token, and are reported. Where the queue tells too little, a pending
// token costs c. A profile has no term for the prefills of others that go on during a decode, so that on busy engines base
// and seq come out as what a token takes there, and not as what it would on an idle one.
//
// Fits are by iterated reweighted least squares with Huber's weights and then Tukey's bisquare, relative to what is predicted, so
// that stalls and preemptions do not bend them; no coefficient is ever negative. A coefficient that the receipts cannot
// tell apart from others, or only with a standard error above a quarter of it, keeps its value.
//
// Endpoints with equal profiles are fitted together; the prefill and the decode are judged apart. An endpoint that the common fit makes
// worse keeps what it has. An endpoint with enough receipts then has a fit of its own, drawn towards the common one by the
// rule of James and Stein: less the more surely its receipts contradict it.
//
// # What counts
//
// Completed requests whose first token is known, on endpoints whose load was known. Others are left out and counted, see [Left].
// Where the engine reports its usage, its word on cached and generated tokens is taken, else the index's and the host's count.
// Lengths of prompts are those that the router was told. Where they are estimates, the fit makes the profile right for them:
// see [Fit].PromptRatio.
//
// # Obligations of the host
//
//  1. Call Lease.FirstToken when the first token comes, and Lease.Done with the usage.
//  2. Record all candidates, as receipts do, of a sample that does not depend on what is to come.
//  3. Adopt [Report].Profiles by setting the endpoints anew. Nothing changes by itself. Receipts of before can go on to be used.
//  4. Fit in a goroutine of its own or another process: it takes a while, see the benchmark.
//
// # Concurrency
//
// Any number of goroutines may use a Calibrator at once. A Reader belongs to one. Everything else is a plain value. There is no
// clock, no goroutine and no source of chance but [Options].Seed.
package calibrate
