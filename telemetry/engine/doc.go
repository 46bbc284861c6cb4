// Package engine turns what inference engines print at their metrics endpoint into a [telemetry.Snapshot].
//
// The host fetches the body, with its own client and its own time limits, and hands it to [Parse] or [Parser.Parse]
// together with the local time at which the request was sent. A failed fetch and an error of Parse are both a failed
// poll, for Store.ScrapeError: a document that is no metrics document never becomes a snapshot of zeros.
//
// What an engine is known to report is one table of signals per [Kind]: the names of the metric families in order of
// preference, and what they mean. Families are matched by their exact names; everything else in the document is skipped
// unread, so that histograms, help texts and the oddities of other exporters cost nothing and break nothing. A figure
// whose families are absent is missing in the snapshot.
//
// Counts of data-parallel ranks stay apart in Snapshot.Ranks, and the store adds them up. Copies of one series that
// differ in other labels (tensor- or pipeline-parallel workers that all report the same scheduler) count once.
//
// Sample timestamps in the document are ignored: they are of the engine's clock. Values are passed on as they are, NaN
// and negative ones too: the store is the one place that rejects and counts them.
//
// The functions and methods of this package keep no state and may be called from any goroutine.
package engine
