package router

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/reserve"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// Role says which phases of a request an endpoint serves.
type Role string

// The roles of an endpoint and of a request. The empty role is RoleBoth.
const (
	RoleBoth    Role = "both"
	RolePrefill Role = "prefill"
	RoleDecode  Role = "decode"
)

func (r Role) orBoth() Role {
	if r == "" {
		return RoleBoth
	}
	return r
}

func (r Role) known() bool { return r == "" || r == RoleBoth || r == RolePrefill || r == RoleDecode }

// serves says whether an endpoint of role r can take a request of role want.
func (r Role) serves(want Role) bool {
	r, want = r.orBoth(), want.orBoth()
	return r == RoleBoth || r == want
}

// Endpoint is one engine replica. Its identity is ID with Incarnation, never an address: a process that came back under
// the same ID is a new incarnation and starts with nothing of the old one's leases, readings and prefixes. An Endpoint is
// a plain value; the pool keeps a copy of its own.
type Endpoint struct {
	// ID names the replica; required, unique in a pool.
	ID string
	// Incarnation tells lives of the replica apart, e.g. a pod's UID. Empty is a value like any other.
	Incarnation string
	// Address is for the host's use; the pool never looks at it.
	Address string
	// Models are the names it serves; empty = any.
	Models []string
	// Role is what it serves of a request; empty = RoleBoth.
	Role Role
	// Profile are its capacities; the zero value stands for the default profile.
	Profile score.Profile
	// Labels are for the host's use and appear in no metric.
	Labels map[string]string
}

// Validate reports every fault of the endpoint, all of them joined.
func (e Endpoint) Validate() error {
	var faults []error
	if e.ID == "" {
		faults = append(faults, errors.New("router: endpoint field ID is empty"))
	}
	if !e.Role.known() {
		faults = append(faults, fmt.Errorf("router: endpoint %q: field Role = %q is not both, prefill or decode", e.ID, string(e.Role)))
	}
	if err := e.Profile.Validate(); err != nil {
		faults = append(faults, fmt.Errorf("router: endpoint %q: %w", e.ID, err))
	}
	return errors.Join(faults...)
}

func (e Endpoint) clone() Endpoint {
	e.Models = slices.Clone(e.Models)
	e.Labels = maps.Clone(e.Labels)
	return e
}

// readiness of an endpoint, set by the host.
const (
	stateReady int32 = iota
	stateDraining
	stateAsleep
)

// live is what the pool knows of one incarnation of an endpoint. It is carried across changes of the endpoint set by
// identity, and outlives its removal while leases are open.
type live struct {
	// What every decision reads, together.
	reported atomic.Pointer[reported] // what the newest readings mean for a decision; never nil
	account  *reserve.Account
	changes  atomic.Uint64 // counts changes of reported by two; odd while one is under way; starts at 2
	probeAt  atomic.Int64  // when the last probe of a suspect endpoint ended, ns; 0 = never
	readied  atomic.Int32
	silent   atomic.Int32 // of waiting
	cleared  atomic.Int64 // when an event last told that its cache is empty, or its circuit opened (not in exact mode), ns; 0 = never
	starting atomic.Int64 // open leases granted here that have not got their first token: by it a silence ends
	probing  atomic.Int32 // open leases granted as probes of an open circuit and without a sign of life yet
	probed   atomic.Int64 // when the last of them was granted, ns
	refused  overload
	circuit  circuit

	_ [64]byte // what follows is written by the tokens that come from there

	waiting waiting

	_ [64]byte // and this by every decision for it

	grantNo                              atomic.Uint64 // number of the newest decision that chose it; 0 = never
	chosen, failed, cancelled, completed atomic.Uint64
	refusals                             atomic.Uint64

	_ [64]byte

	number          uint64 // no other incarnation of the pool has it
	id, incarnation string
	conf            atomic.Pointer[Endpoint] // never written to; replaced as a whole by SetEndpoints and Add
	store           *telemetry.Store
	limiter         *limiter // nil = off
	holder          prefix.Holder
	adapters        adapterMemory
	reporting       sync.Mutex   // held while a snapshot is taken
	pace            pace         // guarded by reporting
	heard           int64        // time of the newest report with an epoch, ns; guarded by reporting
	told            uint64       // version of the account at the last one; guarded by reporting
	indexed         atomic.Int64 // the KV capacity that bounds the index, tokens; 0 = none
}

// ends are numbers of ended leases by cause.
type ends struct{ completed, failed, cancelled, refused uint64 }

func (n *ends) sum() uint64 { return n.completed + n.failed + n.cancelled + n.refused }

func (n *ends) add(e *live) {
	n.completed += e.completed.Load()
	n.failed += e.failed.Load()
	n.cancelled += e.cancelled.Load()
	n.refused += e.refusals.Load()
}

// retired are the endpoints that were removed while leases were open, and what all those that have none left had counted.
type retired struct {
	list   []*live
	counts ends
}

// fold forgets the endpoints whose last lease has ended.
func (r *retired) fold() {
	r.list = slices.DeleteFunc(r.list, func(e *live) bool {
		var n ends
		if n.add(e); n.sum() < e.chosen.Load() {
			return false
		}
		r.counts.add(e)
		return true
	})
}

// kind is what endpoints of one make share. Fleets have few kinds, so that a decision looks at each kind once, and the
// profile that every cost is computed from stays in the processor's nearest cache.
type kind struct {
	profile score.Profile // defaults filled in
	models  []string
	role    Role
}

func (k *kind) same(o *kind) bool {
	return k.profile == o.profile && k.role == o.role && slices.Equal(k.models, o.models)
}

// barrier is why no endpoint of the kind can serve the request.
func (k *kind) barrier(req *Request) Reason {
	if req.Model != "" && len(k.models) > 0 && !slices.Contains(k.models, req.Model) {
		return ModelNotServed
	}
	if !k.role.serves(req.Role) {
		return RoleNotServed
	}
	return NoReason
}
