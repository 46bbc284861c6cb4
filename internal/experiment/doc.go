// Package experiment compares routing policies: it plays a grid of workloads, fleets, loads, telemetry periods, gateways and
// seeds in package world, once for every policy, and says what came out with what confidence.
//
// # Parts
//
//   - A [Workload] makes the requests, a [Fleet] the engines, a [Policy] the choices. A [Grid] is all combinations of them.
//   - Loads are shares of the speed at which round robin saturates, which [Search] finds for each workload and fleet.
//   - [Run] plays the grid on several cores and hands over one [Result] after the other; nothing else is kept.
//   - A [Table] gathers them into one [Row] for each place of the grid and policy: the mean of every figure over the seeds, and the
//     half width of its 95 % confidence interval. [Metrics] lists the figures.
//   - [Accept] holds a policy against the best of the others, figure by figure, and [Judge] sums that up.
//
// # What saturates
//
// A fleet keeps up with a workload at some speed while, under round robin, the share of requests that keep the SLO is at least
// [Search].Keep of what it is at a very light load, and the mean time to the last token at most [Search].Stretch times that of
// the light load. The saturation speed is the greatest one, as far as bisection tells, at which it keeps up. The first
// part is how DistServe (Zhong and others, 2024) defines the capacity of a deployment, relative to what the workload allows at
// all; the second catches workloads of which no request can keep the SLO, such as very long prompts. Incidents do not happen
// meanwhile: a load is a share of what the fleet can do when all is well.
//
// # Determinism
//
// The order in which results are handed over, and the results themselves, depend on the grid alone: neither on GOMAXPROCS nor on
// which core was faster. All policies see the same arrivals, so figures of one seed can be compared in pairs.
//
// # Concurrency
//
// Run starts goroutines and ends them before it returns. It calls the host's callbacks one at a time. Makers of policies and
// builders of workloads are called from several goroutines at once. Everything else is a plain value.
package experiment
