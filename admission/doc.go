// Package admission holds the limits under which requests are admitted, as pure state: hard caps, a bounded fair queue, shares of
// the capacity by class, seed leases, an adaptive limit. Package router ties them into the decision.
//
// [Caps] are checked by the router inside the step that selects an endpoint and reserves its cost, so that admission
// never refuses what selection could have placed elsewhere, and never admits past a cap under any interleaving.
//
// # The queue
//
// [Queue] is the state of a bounded, fair queue. It is full by number and by tokens; then a newcomer takes the place of
// the youngest of the lowest class below its own, or of the youngest of the tenant of its class that holds most over
// its weight, if that is more than its own tenant would hold, or is refused. All that leaves gives its place back at
// once, wherever it stands.
//
// A pass (Begin, Next, SkipGroup) offers free capacity to every waiter in turn: by class first; within a class by the
// virtual start of the tenant, by start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): where its last grant
// ended, tokens over weight, or the class's virtual time if that is later; within a tenant by arrival. Who fits nowhere
// is passed over and stays first, without saving up credit by it. While two tenants both have something waiting
// that fits, their tokens over weight differ by no more than one request of each, the turns of the old apart. A tenant
// that was idle, or is new, starts at the class's virtual time.
//
// Of every AgedEvery grants one is offered first to the oldest of those, below the top class, who have waited AgeAfter:
// of each class and group only to the oldest. That turn stays due while it is not taken, and is put off while a waiter
// of a higher class that the pass has not reached has less than two mean gaps between grants left to its latest start.
// So somebody aged who fits whenever offered, with k aged waiters that are older, is granted within (k+1) x AgedEvery
// grants, not counting those made while the turn is put off: no bound holds against a class above that always hurries.
// The top class does not age: tenants share it, and its waiters time out.
//
// The host's obligations:
//
//  1. Hold one lock around every call, and wait and wake outside the queue.
//  2. Call Expired until it has nothing more before each pass; NextExpiry says when there is something again.
//  3. Start a pass whenever something has come free, and after a Push. Push ends the pass that is under way.
//  4. Give the same Group only to requests that fit in the same places; the fewer groups, the cheaper a pass.
//
// [Shares] keeps part of the capacity free for the more important classes, as far as they have used it lately: ask it
// before a grant, and tell it what is taken, given back and waiting. It lives under the same lock.
//
// # Seeds
//
// While engines report that requests wait, a [Gate] lets nothing through but seeds: a few requests, each bound to one endpoint
// that is known to be idle, by leases for an endpoint and a prefix group. A [SeedSurvey] says, from what is known of all
// endpoints, whether that is so and where a seed may go. The host asks Check where it chooses and calls Take in the step that
// reserves, Observed with every report of an endpoint and Forget when it is gone.
//
// # The adaptive limit
//
// A [Limiter] learns for one endpoint beyond which number of running requests more of them bring no more tokens per second,
// from observations of both, and explains each change of its limit. It never looks at latency.
//
// The package is pure: it keeps no clock and starts no goroutine.
package admission
