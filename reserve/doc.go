// Package reserve is the ledger of token-cost reservations: what was sent to each engine replica and is not over yet.
//
// An engine reports its load now and then; between two reports only the sender knows what it has added and what has
// ended. The ledger keeps that knowledge. Every request sent is a [Lease] on the [Account] of one endpoint and holds a
// [Cost]: prefill tokens until the first token, decode tokens that shrink as output is generated, KV tokens and the
// request itself until its end. Whenever a snapshot of the engine arrives, [Account.Observe] tells the ledger since
// when its figures can have held, and [Account.Sums] then says
//
//   - Live: what all live leases hold,
//   - Unobserved: the part of Live that the newest snapshot cannot contain yet,
//   - Departed: what the newest snapshot can still contain although it is over,
//
// so that reported - Departed + Unobserved is the load of the engine now, and max(Live, that) is a safe reading of it.
//
// # Definitions
//
// T is the newest observation time, d the visibility lag, R the time of the last restart of the engine. Each lease has
// its dispatch time; each of its events (first token, progress, end) has a time and takes some amount off the lease.
//
//   - Live is the sum of what the live leases hold.
//   - Unobserved is the same sum over the leases dispatched at or after T-d, without those whose own answer has brought an
//     observation ([Account.ObserveAnswer]); without an observation it is all of Live.
//   - Departed is the sum of the amounts taken off at or after T from the leases that are not unobserved by this rule and
//     were dispatched not before R.
//     Each amount counts once: a lease whose first token came before T has no prefill left to depart, and decode
//     tokens generated before T are not departed. Output generated since T is departed decode even while the lease
//     lives.
//
// The sums are a function of these times alone, and of which observations came with an answer and were the newest at that
// time. An observation that arrives late, after events that are newer than it,
// gives the same sums as one that arrives in time, as long as the events are remembered ([Config].Horizon and
// [Config].MaxEnded). An event that has been forgotten is missing from Departed, so the load is read too high, never
// too low, until the next observation.
//
// # What the host has to do
//
//  1. Pass times of one clock, best with monotonic readings (time.Now). The ledger has no clock. Times that run
//     backwards or arrive out of order keep the sums exact by the definitions above, but a time in the future stays in
//     force until the clock has passed it.
//  2. Observe with the time at which the poll was SENT, the earliest moment its figures can have held.
//  3. End every lease with [Lease.Release]. Nothing else ends one: there is no timer and no reaper.
//     [Ledger.Oldest] shows what was forgotten.
//  4. Serialise choosing and reserving itself: the ledger makes each call atomic, not a choice followed by a Reserve.
//
// # Concurrency
//
// Every method of [Ledger], [Account] and [Lease] may be called from any goroutine at any time. [Account.Sums] takes
// no lock in the normal case; the other methods of an account and its leases hold that account's mutex for a short
// time. Accounts do not share a lock except while they are opened, closed or listed.
//
// Built with the tag "invariants" or with -race, an underflow of a sum panics; otherwise it is clamped to zero.
package reserve
