// Package workload makes the requests that a simulator of LLM serving feeds to its engines: recorded traces, what can be
// done with them, generators of traffic that routers find hard, and accidents of the world as data.
//
// # Parts
//
//   - Request is one request. Its prompt is a list of Segments, a few bytes for any length; Request.AppendBlocks expands
//     it to one 64-bit id for every whole block of 16 tokens.
//   - Reader reads a trace, line by line: OpenFile, NewReader, or ReadFile for all of it.
//   - Workload is a list of requests in memory. Functions such as Scale, Jitter, Head, FitContext, Merge, Concat and
//     StartSessions make a new one of it; Summarize measures it.
//   - A Generator makes a Workload out of a few numbers and a seed.
//   - Source is what a discrete-event simulator consumes: Open (arrivals as given), Loop (sessions in a closed loop),
//     Mix (several sources at once).
//   - Incident and Telemetry say what goes wrong beside the requests. Scenario ties everything together under a name.
//
// # Block ids
//
// Two requests have the same id at a position exactly if they agree there and in everything before, under the same
// adapter and salt: ids are chained, as the block hashes of an engine are. They are ready to be the hashes of an engine's
// cache, and input for whoever folds them into a scope of its own.
//
// Segments are runs of consecutive numbers. A number stands for one block and everything before it, so a number has
// the same predecessor in every prompt of a workload, and no prompt splits a run that another has in one piece. Readers
// and generators of this package keep to that; Workload.Check finds where it does not hold. The id of a block is a
// bijective mix of its number. Readers and generators begin their numbers at a hash of what they are, so that two sources
// do not meet.
//
// # Obligations of the host
//
//  1. Call Source.Finished for every request taken from a closed source, when its last token has come or when it was
//     rejected or lost; the session goes on from there. An open source ignores the call.
//  2. Take a request only when the host's clock has come to its arrival: before every step, compare Source.Peek with the
//     next event of the simulation. A Finished in between may bring an earlier arrival.
//  3. Once Peek reports nothing and nothing is in flight, look at Source.Err.
//  4. Keep OutputTokens from the router. It may see MaxOutputTokens and ExpectedOutputTokens.
//
// # Determinism
//
// There is no clock, no goroutine, no environment and no global state. Chance comes from PCG generators seeded by the
// caller's seed and the purpose of the draw, so that a change of one parameter leaves the draws for others alone. The
// same arguments give the same requests in every run and with any GOMAXPROCS.
//
// # Concurrency
//
// Requests, Segments, generators, incidents, telemetry and scenarios are plain values. A Workload is never changed by
// this package once it has been returned: any number of goroutines may read it, and any number of sources may play it at
// once. A Reader or a Source belongs to one goroutine at a time.
package workload
