package router

import "github.com/cespare/xxhash/v2"

func tenantHash(tenant string) uint64 {
	if tenant == "" {
		return 0
	}
	return xxhash.Sum64String(tenant) | 1
}

// openOf is the number of open requests of a tenant.
func (p *Pool) openOf(tenant string) int {
	if p.cfg.Caps.Tenant == 0 || tenant == "" {
		return 0
	}
	p.tenantMu.Lock()
	defer p.tenantMu.Unlock()
	return p.tenants[tenantHash(tenant)]
}

func (p *Pool) countTenant(tenant string, l *Lease) bool {
	if p.cfg.Caps.Tenant == 0 || tenant == "" {
		return true
	}
	p.tenantMu.Lock()
	defer p.tenantMu.Unlock()
	h := tenantHash(tenant)
	if p.tenants[h] >= p.cfg.Caps.Tenant {
		return false
	}
	p.tenants[h]++
	l.tenant = h
	return true
}

func (p *Pool) uncountTenant(l *Lease) {
	if l.tenant == 0 {
		return
	}
	p.tenantMu.Lock()
	defer p.tenantMu.Unlock()
	if p.tenants[l.tenant]--; p.tenants[l.tenant] <= 0 {
		delete(p.tenants, l.tenant)
	}
}
