package promexport

import "github.com/isobar-go/isobar/router"

type stats = router.Stats

// rejections is a counter with a series for each reason.
func rejections() family[stats] {
	f := outcomes[stats]("rejections_total", "Requests refused, by reason.")
	f.label = "reason"
	for _, code := range router.RejectCodes() {
		f.samples = append(f.samples, outcome(code, func(s *stats) uint64 { return s.RejectedBy[code] }))
	}
	return f
}

// queued is a figure of the queue.
func queued(get func(*router.QueueStats) float64) func(*stats) (float64, bool) {
	return func(s *stats) (float64, bool) {
		if s.Queue == nil {
			return 0, false
		}
		return get(s.Queue), true
	}
}

// left is a way of leaving the queue.
func left(name string, get func(*router.QueueStats) uint64) sample[stats] {
	return sample[stats]{name, queued(func(q *router.QueueStats) float64 { return float64(get(q)) })}
}

// poolFamilies are the figures of the pool as a whole.
func poolFamilies() []family[stats] {
	return []family[stats]{
		counter("decisions_total", "Leases granted.", func(s *stats) uint64 { return s.Decisions }),
		rejections(),
		counter("decisions_degraded_total", "Decisions made without any usable telemetry.", func(s *stats) uint64 { return s.Degraded }),
		counter("decisions_retried_total", "Looks repeated because another lease was granted meanwhile.",
			func(s *stats) uint64 { return s.Retried }),
		outcomes("leases_ended_total", "Leases ended, by how they ended.",
			outcome("completed", func(s *stats) uint64 { return s.Completed }),
			outcome("failed", func(s *stats) uint64 { return s.Failed }),
			outcome("cancelled", func(s *stats) uint64 { return s.Cancelled }),
			outcome("refused", func(s *stats) uint64 { return s.Refused })),
		gauge("leases_open", "Leases that have not ended.", func(s *stats) int64 { return s.OpenLeases }),
		gauge("oldest_lease_age_seconds", "Age of the oldest open lease, 0 without one. It rises while a lease is forgotten.",
			func(s *stats) float64 { return s.OldestLease.Seconds() }),
		gauge("endpoints", "Endpoints in the pool.", func(s *stats) int { return len(s.Endpoints) }),

		gaugeIfKnown("queue_waiting", "Requests waiting in front of the pool; absent without a queue.",
			queued(func(q *router.QueueStats) float64 { return float64(q.Waiting) })),
		gaugeIfKnown("queue_waiting_tokens", "Prompts and expected outputs of the waiting requests; absent without a queue.",
			queued(func(q *router.QueueStats) float64 { return float64(q.Tokens) })),
		gaugeIfKnown("queue_oldest_wait_seconds", "How long the oldest of them has waited; absent without a queue.",
			queued(func(q *router.QueueStats) float64 { return q.Oldest.Seconds() })),
		outcomes("queue_left_total", "Requests that have left the queue, by how.",
			left("granted", func(q *router.QueueStats) uint64 { return q.Granted }),
			left("cancelled", func(q *router.QueueStats) uint64 { return q.Cancelled }),
			left("displaced", func(q *router.QueueStats) uint64 { return q.Displaced }),
			left("timed-out", func(q *router.QueueStats) uint64 { return q.TimedOut }),
			left("missed-deadline", func(q *router.QueueStats) uint64 { return q.Missed }),
			left("refused", func(q *router.QueueStats) uint64 { return q.Refused })),

		counter("policy_faults_total", "Calls in which the policy failed to choose.", func(s *stats) uint64 { return s.PolicyFaults }),
		counter("observer_faults_total", "Panics of the observer.", func(s *stats) uint64 { return s.ObserverFaults }),
		outcomes("shadow_decisions_total",
			"Decisions seen by the shadow policy: its choice agreed or differed, it was skipped as too slow, or it failed.",
			outcome("agree", func(s *stats) uint64 { return s.ShadowSame }),
			outcome("differ", func(s *stats) uint64 { return s.ShadowOther }),
			outcome("skipped", func(s *stats) uint64 { return s.ShadowSkipped }),
			outcome("fault", func(s *stats) uint64 { return s.ShadowFaults })),

		counter("snapshots_total", "Snapshots delivered.", func(s *stats) uint64 { return s.Snapshots }),
		counter("snapshots_dropped_total", "Snapshots of which nothing was taken, being older than what was held.",
			func(s *stats) uint64 { return s.Dropped }),
		counter("reading_defects_total", "Invalid figures in snapshots, taken as unknown.", func(s *stats) uint64 { return s.Defects }),
		counter("scrape_errors_total", "Failed polls of engines.", func(s *stats) uint64 { return s.ScrapeErrors }),
		counter("epoch_changes_total", "Engine restarts seen in snapshots.", func(s *stats) uint64 { return s.EpochChanges }),

		gauge("prefix_index_bytes", "Memory in use by the prefix index.", func(s *stats) int64 { return s.Prefix.Bytes }),
		gauge("prefix_index_limit_bytes", "Bound on the memory of the prefix index.", func(s *stats) int64 { return s.Prefix.MaxBytes }),
		gauge("prefix_index_nodes", "Nodes of the prefix index's tree.", func(s *stats) int64 { return s.Prefix.Nodes }),
		gauge("prefix_index_blocks", "Blocks stored in the prefix index, each once however many endpoints hold it.",
			func(s *stats) int64 { return s.Prefix.Blocks }),
		counter("prefix_index_evicted_blocks_total", "Blocks taken away from endpoints by the index's bounds.",
			func(s *stats) uint64 { return uint64(s.Prefix.EvictedBlocks) }),
		counter("prefix_index_lost_records_total", "Prefixes that found no room in the index at all.",
			func(s *stats) uint64 { return uint64(s.Prefix.LostRecords) }),
	}
}
