// Package telemetry holds what engines report about themselves, and how far it can be believed.
//
// A [Reading] is one figure with the time at which it may have held; an unknown reading is not zero. A [Snapshot] is
// what one source says about one endpoint at one time, and any part of it may be missing. A [Store] merges the
// snapshots of any number of sources into one [State], in which each figure is the newest valid word on it. [Limits]
// turn the age of a reading into a [Class]: what it may still be used for.
//
// Four things are kept apart for every figure: missing (nobody has reported it), stale (it was reported too long ago),
// invalid (the newest report was NaN, infinite, negative or absurd, so that the figure is unknown and a defect is
// counted) and zero.
//
// # What the host must do
//
//  1. Own the clock, and pass it in. The package never asks for the time. Times need no monotonic part, so that a
//     virtual clock works; it should not run through the zero time.Time, which stands for "the same as elsewhere".
//  2. Stamp a poll with the time at which it was sent, not with the time of the answer: that is the earliest moment at
//     which the figures can have held. Never stamp it with the engine's own clock. Say in Interval how often it is polled: a
//     router judges by it how old a reading becomes in good order.
//  3. Report a failed poll with ScrapeError and hand in no snapshot for it. It must not become zeros.
//  4. Use one Store for one incarnation of an endpoint and a new one for the next. A restart in place is noticed by the
//     Epoch and clears the store by itself; the Result says so, since caches of the host's own are void too.
//  5. Load the State first and read the clock after that, before classifying ages: a reading from after the host's now
//     counts as stale, since only a clock that went backwards explains it.
//  6. Treat a State with a Suspect reason as missing and send it one request at a time, to see. The store cannot see
//     requests: a host that wants the figures believed again before they move calls Trust when one comes to life.
//
// # Suspicion
//
// An engine that hangs may go on answering polls. Two patterns are recognised over FrozenAfter consecutive observations
// (10 by default): the same load figures on a busy engine while none of the host's requests ran there (frozen), and
// requests that wait while none runs (wedged). A figure that moves ends the first, a running request or an empty queue
// ends the second.
//
// # Concurrency
//
// All methods of [Store] may be called from any goroutine. Store.State takes no lock and returns an immutable value; the
// others wait for each other for the time of one merge. All other types are plain values.
package telemetry
