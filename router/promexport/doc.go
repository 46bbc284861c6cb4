// Package promexport shows the counters and the state of a [router.Pool] to Prometheus.
//
//	registry.MustRegister(promexport.New(pool, promexport.Options{}))
//
// It is a module of its own, so that a host which does not use Prometheus does not depend on its client.
//
// # What it shows
//
// Every scrape reads [router.Pool.Stats] once. Names begin with Options.Namespace and end in the unit; counters end in
// _total. Figures of the pool as a whole have no label but outcome or reason. Figures of one endpoint carry its ID as the label
// endpoint; a state is shown one-hot, as a series for each possible state, of which one is 1, with the label state or
// reason. A figure that no engine has reported is absent, never 0.
//
// An endpoint has a fixed number of series, and those of an endpoint that was removed end with it. A new incarnation under
// the same ID begins its counters at 0, which Prometheus takes as a counter reset; the pool's own counters go on. Nothing of
// a request is a label: no tenant, session, model, class or prompt.
//
// # What the host must do
//
//  1. Register each collector once, with a registry of its own choosing; this package knows no global one.
//  2. Give each of several pools in one registry its own Namespace or ConstLabels.
//  3. Check the error of Register: it names what is wrong with the pool or the options.
//  4. Keep the number of endpoint IDs that live at one time within what its Prometheus can take.
//
// # Concurrency
//
// A [Collector] never changes: it may be scraped from any goroutine, while the pool is in use. A scrape costs the pool what
// a call of Stats costs, and no decision waits for it.
package promexport
