// Package cases runs scenarios written as text against a real [router.Pool] on a virtual clock.
//
// A case is a small file in the format of github.com/cockroachdb/datadriven: blocks of a command line, optional input lines,
// a line "----", and the lines that must come out, up to a blank line (or between two "----" "----" pairs, where blank lines
// are wanted). Lines that begin with # between the blocks are comments.
//
//	# The busy engine loses.
//	setup
//	pool seed=7
//	endpoint a prefill-rate=8000 kv-capacity=100000
//	endpoint b prefill-rate=8000 kv-capacity=100000
//	observe a running=38 waiting=36 kv=0.12
//	observe b running=0 waiting=0 kv=0
//	----
//
//	route prompt=1000 out=200
//	----
//	b
//
// [Parse] reads a file, [File.Run] runs it on a new [Machine], and [File.Rewrite] writes the results into it. The command
// in the folder run does so for any file or folder.
//
// # Commands
//
// The command setup runs its input lines as commands and prints nothing unless one fails; then it stops there, and what came
// before stays. Every other command may stand in it or alone. A command that fails prints "error: " and one line and has
// changed nothing; an unknown command, key, endpoint or lease is a failure. Rejected requests, dropped snapshots and defects
// are results.
//
//	pool K=V...                      configuration, before anything that needs a pool: any field of router.Config by its
//	                                 path in kebab case (bounds.max-kv=0.9, fail-closed), policies by name; 0 means zero
//	endpoint ID K=V...               add or change
//	remove, drain, ready, sleep ID   membership and readiness
//	observe ID K=V...                a snapshot, age= ago; further lines are ranks
//	scrape-error ID                  a poll that failed
//	advance DUR                      the clock; nothing else moves it
//	route [n=K] K=V...               reserve
//	spread, cycle, same, parallel    many of them
//	score, explain K=V...            look without reserving
//	first-token, done, fail, cancel NAME; progress NAME tokens=N
//	load ID, match prefix=...        the ledger, the prefix index
//	kv-event ID stored|removed|cleared, clear ID|all
//	why, shadow [delta]              the receipt of the last route (parallel has no last one) and the newest shadow record
//
// The command score lists the choice first. An endpoint that cannot serve the request, or must not yet, is -ID(REASON); one
// at a cap is not, and stands behind those that have room. The command why prints what was out of the ordinary, a line each: degraded,
// affinity lifted, suspect, affinity withheld with the figure and its bound, what excluded an endpoint other than the host
// or the request itself, probe. The commands match and kv-event take the parts of the scope as route does.
//
// An expected line that ends in " ..." matches every line that begins with what is before it.
//
// # Bounds
//
// A file has at most 1 MiB, a command at most 100,000 requests, a prompt with a prefix at most 2^22 tokens. No input makes
// this package panic.
//
// # Concurrency
//
// A File is immutable once parsed: any number of goroutines may run it at once. A Machine belongs to one goroutine; the
// command parallel starts goroutines and waits for all of them.
package cases
