// Package engine turns what inference engines report into a [telemetry.Snapshot]: the text at their metrics endpoints, the
// JSON of their load endpoints, and the header that some of them put on every response.
//
// # What the host does
//
//  1. It fetches the body, with its own client and its own time limits, from [Kind.Path], and hands it to
//     [Parser.Report], [Parser.Parse] or [Parse] together with the local time at which the request was sent. It asks for
//     the plain text format: the exemplars of OpenMetrics are an error. Where the kind is not known, [Detect] tells it.
//  2. It treats a failed fetch and an error alike, as a failed poll (Store.ScrapeError): a document that is no report
//     never becomes a snapshot of zeros.
//  3. It keeps one [Lives] for each endpoint and applies it to every report, so that a restart shows where the engine does
//     not print when its process started.
//  4. It takes care not to compare the KV figures of engines that mean different things by them: [Kind.KVMeaning]. Snapshots carry
//     it as KVOccupied, and a router.Pool goes by that.
//
// # What is read
//
// What an engine is known to report is one table of signals for each [Kind]: the names of the metric families in order of
// preference, and what they mean. Of several names of one signal the first is read and none is added to another. Families
// are matched by their exact names; everything else in the document is skipped unread, so that histograms, help texts,
// series of creation times and the oddities of other exporters cost nothing and break nothing. A figure whose families are
// absent is missing in the snapshot. [Signals] says what a kind can tell and [Report.Signals] what a report does.
//
// Counts of data-parallel ranks stay apart in Snapshot.Ranks, and the store adds them up. Copies of one series that
// differ in other labels (tensor- or pipeline-parallel workers that all report the same scheduler) count once. A host
// that wants one replica or one worker out of a document of several sets Parser.Labels. A figure without a rank beside ranks
// that report it is their total and is left out. More than 4,096 ranks, or 16,384 entries of a JSON list, are an error.
//
// Sample timestamps in the document are ignored: they are of the engine's clock. Values are passed on as they are, NaN
// and negative ones too: the store is the one place that rejects and counts them. Used tokens that contradict the printed
// share of the same rank are left out, since the share is what the engine acts on. Nothing is computed from the growth of
// counters between two polls.
//
// # Disaggregated serving
//
// SGLang has queues of its own for engines that only prefill or only decode. Requests in the queue before the prefill
// (prealloc, bootstrap) and in those before the decode batch (prealloc, transfer, retracted) have not started here and count
// as waiting. Those of which a prefill engine is sending the memory away (inflight) are done here: they count neither as
// waiting nor as running, and show in the KV figures. The load report has these queues in its waiting number already, the
// Prometheus text has not.
//
// # Statistics of trtllm-serve
//
// The JSON of [TRTLLMIterations] is the list of iterations since it was last read, by anybody, and is [] if there were
// none: an error, not an idle engine. Its newest entry can be as old as the poll before, which is therefore the observation
// time that a careful host hands in. Where the engine also prints [TRTLLM], that is the better source.
//
// # In-band reports
//
// A request with the header [LoadFormatHeader] makes vLLM and the Triton server add a [LoadHeader] to the response, which
// [ParseLoadHeader] reads. The figures held at the earliest when the request was sent, and are usually those of the moment
// in which the engine wrote its response headers.
//
// # Concurrency
//
// The functions of this package and the methods of Parser and Kind keep no state and may be called from any goroutine. Lives
// has state: one goroutine at a time.
package engine
