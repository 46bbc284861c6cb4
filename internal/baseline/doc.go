// Package baseline holds the rules by which other routers choose an engine, each under its own name and with its authors' defaults, as
// choosers of package world: what a policy has to beat. With them come two oracles, which bound what any rule could reach.
//
// # The rules
//
// [Names] lists them; [ByName] gives the maker of one. The comment of each rule's function is the rule.
//
//   - By turns or by lot: round-robin, random, power-of-two.
//   - By load: least-requests, queue-only, gateway-least-load, lpwl, lmetric, prequal-hcl.
//   - By hashing: session-hash, chwbl.
//   - By cached prefixes, most of them with load: prefix-only, gateway-cache-aware, weighted-3-2-2, sticky-until-saturated, kv-router,
//     loadaware, mooncake-conductor.
//   - own-only is the real router.Pool with its default policy and no ears for the engines: the best that own requests alone allow.
//   - oracle and oracle-others see the true state of every engine.
//
// # What they all share
//
// A gateway's own accounting is exact: which of its requests are open where, which of them have their first token, how many tokens
// they have generated. It knows nothing of other gateways. Cached prefixes are what it has routed, in a prefix index that holds
// as much for an engine as fits there, or what engines tell where the world has them tell. Reports count as they are, however old, as the
// published rules have it; an engine without a report counts as the mean of those that have one. Only engines that can serve a
// request are chosen: there by the operators' word and not draining, with its model, with memory for its prompt, and, as long as
// there are others, not among those that have failed it before. No rule watches for engines that fail: none of those published does
// by itself. Equals are drawn by lot, from [world.Env].Seed.
//
// # The oracles
//
// oracle hands a copy of each engine's state the request and simulates it, pass by pass, until the request is done, and takes the
// engine where that is first. So regret against it is measured in the request's own predicted completion. oracle-others goes
// on until the engine is empty, and takes the engine where the request adds least to the sum of all completions, its own
// included: what it costs others is regret too. Neither knows what comes after, so that a rule can do better than both over a whole
// run. [Watch] measures the regret of any chooser, choice by choice, against both.
//
// The copy knows how many blocks each request holds and finds in the cache, and not which are lost where memory is short: there it is
// an estimate; otherwise its passes are those of the engine, to the last one. It takes the network for instant, does not know
// adapters, nor how long the new request's output will be, and takes what the client expects, else its limit, else the mean of the
// outputs so far.
//
// # The host's obligations
//
// A chooser is made and called by a run of package world, or as one does: slots are small and in use by one request at a time,
// every request chosen ends once, and numbers of engines are those of [world.Env].Endpoints.
//
// # Concurrency
//
// A chooser belongs to one goroutine at a time, like the run that it is part of. Makers may be used from any goroutine. There is no
// package-level state, no clock and no goroutine.
package baseline
