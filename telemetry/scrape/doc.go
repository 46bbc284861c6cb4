// Package scrape polls the metrics of a set of engines and hands them to a router: a [Poller] with a method Run.
//
// With a *router.Pool it takes these lines:
//
//	poller, err := scrape.New(scrape.Config{
//		Sink: pool,
//		Targets: func() []scrape.Target {
//			var out []scrape.Target
//			for _, e := range pool.Endpoints() {
//				out = append(out, scrape.Target{ID: e.ID, Incarnation: e.Incarnation, URL: e.Address + "/metrics"})
//			}
//			return out
//		},
//	})
//	if err != nil {
//		return err
//	}
//	go func() { stopped <- poller.Run(ctx) }()
//
// # What it promises
//
//   - The observation time of a snapshot is the time at which its poll was sent, the earliest moment at which the figures
//     can have held. A parser may name an earlier time, never a later one.
//   - A poll that fails is told as such, with its [Reason], and never becomes a snapshot: a connection that fails, another
//     status than 200, a wrong document, a body that is too large or breaks off, even behind what the parser has read.
//   - Every endpoint has its own poll, its own timeout and its own back-off, one poll at a time: an engine that is slow or
//     dead delays nobody. With MaxConcurrent, those that failed may take half of the places at most.
//   - Two polls of an endpoint start at least Every less its Jitter apart, however late the one before came to its end;
//     the second poll of a new endpoint after half of Every or more. Ticks that were missed, because a poll took long or
//     because the process stood still, are skipped and not made up for.
//   - Endpoints that are added, removed, or replaced by another incarnation are followed: at the next answer of anybody,
//     after Every at the latest, soon after a call of Sync. Before an answer is delivered, Targets is asked once more
//     whether it still speaks of the same endpoint. A replacement between that and the sink's own lookup, some
//     microseconds later, is not seen.
//   - When Run returns, nothing of it is left running.
//
// # The host's obligations
//
//   - Run has to be called, in a goroutine of its own, and ends with its context.
//   - Config.Now must be the clock of the sink, or ages are nonsense. Nothing needs to be set where both use time.Now.
//   - Targets and the sink are called in the middle of things and must not block. They may call Stats and Sync.
//   - An endpoint that is polled but is not in the sink fails with ReasonSink.
//   - Targets should name an endpoint for as long as the sink knows it. One that has been away is new to the poller: where its
//     restarts show by its counters alone, they are counted from the first again, which the sink takes for another restart.
//   - What an engine says beside its metrics, such as its health or its models, is the host's to ask.
//
// # Failures and statistics
//
// [Poller.Stats] and [Poller.Endpoint] give the age of the newest snapshot, the failures in a row, the reason of the last
// one, durations and totals. Errors name the endpoint and never its URL.
//
// # Concurrency
//
// All methods of [Poller] may be called from any goroutine. [Target], [Config], [Error] and the statistics are plain data.
package scrape
