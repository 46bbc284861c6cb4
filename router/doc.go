// Package router chooses which engine replica serves a request, inside the process of the host, and accounts for it.
//
// A [Pool] knows a set of endpoints. The host tells it what the engines report ([Pool.Observe]) and asks it to place
// requests ([Pool.Reserve]). Selecting and reserving are one atomic step; the [Lease] that comes back holds the request's
// cost until the host ends it.
//
// # What the host must do
//
//  1. Give the endpoints: [Pool.SetEndpoints], or Add, Remove, Drain, Ready and Sleep. Identity is ID and Incarnation.
//  2. Deliver snapshots: [Pool.Observe], with ObservedAt the time at which the poll was sent. An engine that is not
//     heard of is priced as unknown; a pool that hears of nobody goes on by its own ledger.
//  3. Reserve, and send the request to [Lease.Endpoint].
//  4. Say when the first token came ([Lease.FirstToken]) and how many there are ([Lease.Progress]); both are optional
//     and make the ledger sharper.
//  5. End every lease, at the end of the stream and not at its headers: [Lease.Done], [Lease.Fail] or [Lease.Cancel].
//     Ending it again does nothing, so deferring Cancel is safe. No timer does it for the host; [Stats].OldestLease shows a
//     lease that was forgotten.
//
// Package httptransport does 3 to 5 for HTTP.
//
// # How it decides
//
// Endpoints that cannot serve are left out, each with a [Reason]; then those at a cap. Of the rest every one gets a cost
// in ms ([score.Terms]): the work that waits there, the request's own, and what it costs others. The [Policy] chooses;
// [Pressure] takes the lowest total. A warm prefix saves the prefill time it avoids, as long as it is inside its
// [Bounds], and no other is known better.
//
// Readings count by their age. They lose weight beside the pool's own ledger by exp(-age/Decay), except that a queue is never
// taken to shrink faster than its engine can compute; aging ones carry a growing uncertainty, stale ones do not count at all,
// and affinity counts for those whose readings are the freshest of all who can serve the request. What is fresh follows from
// [Freshness], or from how often an endpoint reports if that is less often. A missing figure is never zero: it counts as
// what the pool's own leases lead to expect and, on top, the mean of what the fresh ones of the others have beyond that; and never
// less than the pool's own leases. What was sent after a snapshot was taken is added to it, what has ended since is taken off. Where
// no reading of anybody is usable, the same terms follow from the pool's own leases and from what it sent where, and the receipt
// says so: [Decision].Degraded.
//
// An engine that hangs may report as if nothing were. While leases wait there for their first token, and no token or completion
// of a lease and no report of more memory in use shows that it lives, the time beyond what the prompts sent there explain and beyond
// silences that are usual in the pool is expected to last as long again. It is part of its queue, with the weight of Wait on top:
// [score.Load].Silence. A minute after the newest was sent another may find out; when all of them have ended without a first token, a
// minute at most is remembered, as long as it lasted. A lease that its host has lost counts until a newer one gets its first token.
// Nobody is refused for a silence. A host that fails what gets no first token in time helps: failures open the circuit.
//
// # Who is admitted
//
// Caps ([Config].Caps) are checked inside the decision, so that none is ever passed and nothing is refused that fits somewhere.
// What else limits admission is off by default, and checked in the same step:
//
//   - [Limit] learns for each endpoint how many requests it should have at once.
//   - [Shares] keeps a part of the capacity for the classes that use it, against less important ones.
//   - Seeds: while requests wait on engines, nothing is admitted but a few requests, each bound to an endpoint that is known to be idle.
//   - A deadline is refused where it cannot be met, at once: [ErrDeadline].
//
// With [Queue], a request that finds no room waits in front of the pool, and whatever makes room (the end of a lease, a snapshot,
// an endpoint) hands it on directly, in the order of classes, tenants' fair shares by tokens, and arrival; one who fits nowhere holds
// nobody up who does, and a newcomer passes nobody by. [Pool.Reserve] waits; a host that would rather not wait in it uses
// [Pool.Enqueue], whose [Ticket] tells when it is done, and [Pool.Tick], which lets time do its part. The errors are the same
// whether a request has waited or not.
//
// # Concurrency
//
// All methods of Pool and Lease may be called from any goroutine. A decision is computed without a lock and committed
// under a short one; where another was committed meanwhile, the endpoints concerned are looked at again. Leases end and
// snapshots arrive without that lock. Nothing here starts a goroutine; the receipt writers have a Run method that the
// host runs.
//
// # Determinism
//
// With one seed, one clock and one sequence of calls the choices are the same. [Replay] makes a decision again from its
// [Receipt].
package router
