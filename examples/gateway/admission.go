package main

import (
	"flag"
	"fmt"
	"strings"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/examples/gateway/internal/gateway"
	"github.com/isobar-go/isobar/router"
)

// limits are the ways to use the adaptive limit.
func limits() []string { return []string{gateway.LimitOff, gateway.LimitObserve, gateway.LimitOn} }

// admissionFlags say who is admitted.
type admissionFlags struct {
	pool  router.Config // what is set here are Caps, Queue, Shares and Seeds
	limit string
}

// Which flags are for what; never changed. The demonstrations have caps of their own, by which they show something.
var (
	forEngines = []string{
		"max-requests", "max-engine-requests", "max-waiting", "max-tenant-requests", "max-tenant-tokens", "interactive-share", "seeds",
	}
	forQueue   = []string{"queue-timeout", "queue-tokens"}
	forServing = []string{"queue", "queue-timeout", "queue-tokens", "limit"} // and for the demonstration
)

func (a *admissionFlags) define(f *flag.FlagSet) {
	caps, q := &a.pool.Caps, &a.pool.Queue
	f.IntVar(&caps.Aggregate, "max-requests", 0,
		"most requests on all engines together, those from elsewhere included, 0 = no limit (real engines only)")
	f.IntVar(&caps.Endpoint, "max-engine-requests", 0, "most requests on one engine, 0 = no limit (real engines only)")
	f.IntVar(&caps.Waiting, "max-waiting", 0,
		"waiting requests, reported or just sent, from which an engine gets no more, 0 = no limit (real engines only)")
	f.IntVar(&caps.Tenant, "max-tenant-requests", 0, "most requests of one key or user, 0 = no limit (real engines only)")
	f.Int64Var(&caps.TenantTokens, "max-tenant-tokens", 0,
		"most tokens, prompts and expected outputs, of the open requests of one key or user, 0 = no limit (real engines only)")
	f.IntVar(&q.Max, "queue", 0, "most requests that wait for room where these limits leave none, 0 = they are refused at once")
	f.DurationVar(&q.Timeout, "queue-timeout", 0, "how long a request waits at most, 0 = 30s")
	f.Int64Var(&q.MaxTokens, "queue-tokens", 0, "most tokens, prompts and expected outputs, of the requests that wait, 0 = no limit")
	f.Float64Var(&a.pool.Shares.Interactive, "interactive-share", 0,
		"part of the capacity, 0 to 1, that is kept for interactive requests while there are some; needs -trust-class (real engines only)")
	f.IntVar(&a.pool.Seeds.Max, "seeds", 0, "while requests wait on engines, admit only so many at once to each engine that is known "+
		"to be idle, 0 = go on as usual (real engines only)")
	f.StringVar(&a.limit, "limit", gateway.LimitOff, fmt.Sprintf("adaptive limit of the requests on each engine, one of %v; what %s "+
		"would have done is at /debug/isobar", limits(), gateway.LimitObserve))
}

// check says what is wrong with the flags that were given, and sets the adaptive limit.
func (a *admissionFlags) check(f *flag.FlagSet, o *options) error {
	var err error
	refuse := func(names []string, why string) {
		f.Visit(func(g *flag.Flag) {
			for _, name := range names {
				if g.Name == name && err == nil {
					err = fmt.Errorf("gateway: flag -%s = %s %s", name, g.Value, why)
				}
			}
		})
	}
	if o.overload {
		refuse(forServing, "is not for -overload, which has limits of its own")
	}
	if len(o.engines) == 0 {
		refuse(forEngines, "is for real engines, and there is no -engine")
	}
	if a.pool.Queue.Max == 0 {
		refuse(forQueue, "needs -queue")
	}
	if a.pool.Queue.Timeout < 0 {
		refuse(forQueue[:1], "must be at least 0")
	}
	if !(a.pool.Shares.Interactive >= 0 && a.pool.Shares.Interactive <= 1) {
		refuse([]string{"interactive-share"}, "is not within 0 and 1")
	}
	if a.pool.Shares.Interactive > 0 && !o.trust {
		refuse([]string{"interactive-share"}, "needs -trust-class: without it no request is interactive")
	}
	switch a.limit {
	case gateway.LimitOff:
	case gateway.LimitObserve, gateway.LimitOn:
		a.pool.Limit = router.Limit{Adaptive: true, Learn: admission.LimitConfig{ObserveOnly: a.limit == gateway.LimitObserve}}
	default:
		refuse([]string{"limit"}, "is none of "+strings.Join(limits(), ", "))
	}
	return err
}
