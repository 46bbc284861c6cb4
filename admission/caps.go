package admission

import (
	"errors"
	"fmt"
)

// Caps are hard limits on what is admitted. The zero value has none: 0 switches a cap off. A Caps is a plain value; any
// number of goroutines may read it.
type Caps struct {
	// Waiting is the number of waiting requests from which an endpoint takes no more: those it reports plus those sent and
	// not yet observed, whatever these do by now. It vetoes only on a usable report, or on the pool's own part of a stale
	// one; an endpoint that has never reported has no queue to show. Requests count one each, whatever their size.
	Waiting int
	// Endpoint is the number of requests on one endpoint, running and waiting, counted to the end of their streams.
	Endpoint int
	// Aggregate is the number of requests running, waiting or just sent, over the whole pool.
	Aggregate int
	// Tenant is the number of this pool's own open requests of one tenant. Requests without a tenant are not limited.
	Tenant int
	// TenantTokens is the number of tokens, prompt and expected output, of this pool's own open requests of one tenant. A
	// request that is larger by itself is never admitted.
	TenantTokens int64
}

// Validate reports every negative cap, all of them joined.
func (c Caps) Validate() error {
	var faults []error
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"Waiting", int64(c.Waiting)}, {"Endpoint", int64(c.Endpoint)}, {"Aggregate", int64(c.Aggregate)}, {"Tenant", int64(c.Tenant)},
		{"TenantTokens", c.TenantTokens},
	} {
		if f.value < 0 {
			faults = append(faults, fmt.Errorf("admission: Caps.%s = %d must be at least 0", f.name, f.value))
		}
	}
	return errors.Join(faults...)
}

// Verdict is the answer of a cap. The zero value admits.
type Verdict uint8

// The caps that can refuse an endpoint or a pool.
const (
	Admitted Verdict = iota
	OverWaiting
	OverEndpoint
	OverAggregate
	OverTenant
	OverTenantTokens
)

// CheckEndpoint says whether one more request fits on an endpoint with that many requests, and that many waiting; a
// negative waiting means that nothing is known of its queue, which vetoes nothing.
func (c *Caps) CheckEndpoint(requests, waiting float64) Verdict {
	if c.Waiting > 0 && waiting >= float64(c.Waiting) {
		return OverWaiting
	}
	if c.Endpoint > 0 && requests >= float64(c.Endpoint) {
		return OverEndpoint
	}
	return Admitted
}

// CheckPool says whether one more request fits in a pool with that many requests.
func (c *Caps) CheckPool(requests float64) Verdict {
	if c.Aggregate > 0 && requests >= float64(c.Aggregate) {
		return OverAggregate
	}
	return Admitted
}

// Open is what a tenant has open. It is a plain value.
type Open struct {
	// Requests is their number, Tokens the sum of their prompts and expected outputs.
	Requests int
	Tokens   int64
}

// CheckTenant says whether one more request of that many tokens fits beside what its tenant has open.
func (c *Caps) CheckTenant(open Open, tokens int64) Verdict {
	if c.Tenant > 0 && open.Requests >= c.Tenant {
		return OverTenant
	}
	if c.TenantTokens > 0 && open.Tokens > c.TenantTokens-tokens {
		return OverTenantTokens
	}
	return Admitted
}

// PerTenant says whether there are caps on tenants.
func (c *Caps) PerTenant() bool { return c.Tenant > 0 || c.TenantTokens > 0 }
