package router

// Reason says why a candidate was left out, or why its cached prefix did not count. The zero value is no reason.
type Reason uint8

// Reasons of exclusion come first, then the caps, then the reasons for which affinity is withheld.
const (
	// NoReason: the candidate takes part.
	NoReason Reason = iota
	// Draining: so set by the host.
	Draining
	// Asleep: the host or the engine says that it sleeps.
	Asleep
	// ModelNotServed: it does not serve the requested model.
	ModelNotServed
	// RoleNotServed: it does not serve that phase.
	RoleNotServed
	// TooLong: the prompt does not fit into its KV memory.
	TooLong
	// CircuitOpen: too many of its requests failed.
	CircuitOpen
	// Unhealthy: the engine itself reports an error.
	Unhealthy
	// Excluded: by the request.
	Excluded
	// Probing: a probe is under way there, one at a time.
	Probing
	// UnobservedLimit: it has never reported, others have, and as many leases as it may have at once wait there for their first token.
	UnobservedLimit
	// TelemetryMissing: no usable readings, with FailClosed on.
	TelemetryMissing
	// CapWaiting, CapEndpoint: it is at that cap.
	CapWaiting
	CapEndpoint
	// CapAggregate, CapTenant, CapTenantTokens: the pool is at that cap.
	CapAggregate
	CapTenant
	CapTenantTokens
	// CapShare: what is left is reserved for classes of more importance.
	CapShare
	// CapAdaptive: it has as many requests as its adaptive limit allows.
	CapAdaptive
	// MissesDeadline: its predicted completion there is after its deadline.
	MissesDeadline
	// SeedOnly: requests wait in the pool, and nothing but a seed for an idle endpoint is admitted, which this one is not.
	SeedOnly
	// SeedSpent: it was given its seeds, and has not reported since, or rests before the next.
	SeedSpent
	// SeedTelemetry: seeds need complete and fresh readings of every endpoint, and some are missing.
	SeedTelemetry
	// SeedUnbound: the policy did not choose the endpoint that the seed was bound to.
	SeedUnbound

	// WithheldNotFresh: its load readings are aging while those of another candidate are fresh, or stale or missing while those of another
	// are not.
	WithheldNotFresh
	// WithheldWaiting, WithheldKV, WithheldQueueDelay, WithheldLead: it is outside that pressure bound.
	WithheldWaiting
	WithheldKV
	WithheldQueueDelay
	WithheldLead
)

var reasonNames = [...]string{
	NoReason: "", Draining: "draining", Asleep: "asleep", ModelNotServed: "model", RoleNotServed: "role",
	TooLong: "too-long", CircuitOpen: "circuit-open", Unhealthy: "unhealthy", Excluded: "excluded", Probing: "probing",
	UnobservedLimit: "unobserved-max", TelemetryMissing: "telemetry-incomplete", CapWaiting: "cap-waiting",
	CapEndpoint: "cap-endpoint", CapAggregate: "cap-aggregate", CapTenant: "cap-tenant",
	CapTenantTokens: "cap-tenant-tokens", CapShare: "cap-share", CapAdaptive: "cap-adaptive",
	MissesDeadline: "misses-deadline", SeedOnly: "seed-only",
	SeedSpent: "seed-spent", SeedTelemetry: "seed-telemetry", SeedUnbound: "seed-unbound",
	WithheldNotFresh: "not-fresh", WithheldWaiting: "waiting", WithheldKV: "kv", WithheldQueueDelay: "queue-delay",
	WithheldLead: "lead",
}

// String is the name under which the reason appears in receipts; empty for NoReason.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}

// MarshalText writes the name.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads a name; an unknown one is an error that carries it.
func (r *Reason) UnmarshalText(text []byte) error {
	for i, name := range reasonNames {
		if name == string(text) {
			*r = Reason(i)
			return nil
		}
	}
	return unknownName("reason", string(text))
}

// bound says that the reason is a pressure bound, for which cached tokens do not count.
func (r Reason) bound() bool { return r > WithheldNotFresh }
