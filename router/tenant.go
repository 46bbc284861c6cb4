package router

import (
	"github.com/cespare/xxhash/v2"

	"github.com/isobar-go/isobar/admission"
)

func tenantHash(tenant string) uint64 {
	if tenant == "" {
		return 0
	}
	return xxhash.Sum64String(tenant) | 1
}

// payer is whom a request counts for; 0 = nobody.
func (p *Pool) payer(req *Request) uint64 {
	if !p.cfg.Caps.PerTenant() {
		return 0
	}
	return tenantHash(req.Tenant)
}

// openOf is what a tenant has open.
func (p *Pool) openOf(payer uint64) admission.Open {
	if payer == 0 {
		return admission.Open{}
	}
	p.tenantMu.Lock()
	defer p.tenantMu.Unlock()
	return p.tenants[payer]
}

// countTenant counts a lease for its tenant, unless that would be above a cap; p.decide is held.
func (p *Pool) countTenant(v *View, l *Lease) bool {
	if v.payer == 0 {
		return true
	}
	p.tenantMu.Lock()
	defer p.tenantMu.Unlock()
	open, tokens := p.tenants[v.payer], v.size.tokens()
	if v.tenant = open; p.cfg.Caps.CheckTenant(open, tokens) != admission.Admitted {
		return false
	}
	open.Requests++
	open.Tokens += tokens
	p.tenants[v.payer] = open
	l.tenant, l.size = v.payer, tokens
	return true
}

func (p *Pool) uncountTenant(l *Lease) {
	if l.tenant == 0 {
		return
	}
	p.tenantMu.Lock()
	defer p.tenantMu.Unlock()
	open := p.tenants[l.tenant]
	open.Requests--
	open.Tokens -= l.size
	if open.Requests <= 0 {
		delete(p.tenants, l.tenant)
		return
	}
	p.tenants[l.tenant] = open
}
