// Package world is a deterministic discrete-event simulation of a whole service: clients, gateways and LLM engines. The
// engines are those of package sim; the choices are made by the real router.Pool, or by whatever else implements [Chooser].
//
// # Parts
//
//   - A [Source] says when which request arrives. It may be a list, a generator or a closed loop that waits for [Source.Finished].
//   - Every gateway has a [Chooser] of its own. It is asked for an engine, and told what a gateway can know: first tokens,
//     progress, ends, polled reports, lost polls, cache events.
//   - Engines work in passes. Requests reach them, and their words come back, after [Config.Net].
//   - Incidents drain, restart, freeze, slow, silence and kill engines.
//
// [Run] simulates until every request has ended and returns one [Record] per request, the course of every engine's load, and
// what [Summarize] makes of them.
//
// # What a router may know
//
// A [Request], which is all that a Chooser sees, is built from an [Ask], which has no output length; how much a request will
// generate is known to its engine alone. [Env].Truth shows the true state of the engines, for oracles.
//
// # Time and order
//
// Time is a number of ns since the start, and no wall clock is read. Events of one instant come in the order of their kind,
// then of their request or engine number, so that the order of insertion never matters; it decides only between events that are
// equal in everything. All chance is a hash of [Config].Seed and of what is drawn for. Same configuration, same source, same
// result, to the last bit.
//
// Runs of passes in which nothing happens but one more token for everybody are jumped over in one step, and are cut short
// where something comes in. The results are those of [Config].PassByPass, which does them one by one.
//
// # What is checked in every run
//
// Run fails when an event would come before its cause; when an engine with work and a free place idles; when a request or a
// KV block is lost or ends twice; when a chooser names an engine that is not there; when its books do not close.
//
// # Concurrency
//
// A run belongs to one goroutine and starts none. Any number of runs may go on at the same time as long as they share no
// Source, Chooser or Observer. Configurations, records and figures are plain values.
package world
