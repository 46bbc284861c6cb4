package promexport

import (
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

type endpoint = router.EndpointStats

// endpointFamilies are the figures of one endpoint.
func endpointFamilies() []family[endpoint] {
	return []family[endpoint]{
		gauge("endpoint_leases_open", "The pool's leases there that have not ended.",
			func(e *endpoint) int64 { return e.Own.Live.Requests }),
		gauge("endpoint_leases_unobserved", "Open leases that the newest snapshot cannot contain.",
			func(e *endpoint) int64 { return e.Own.Unobserved.Requests }),
		counter("endpoint_chosen_total", "Leases granted there.", func(e *endpoint) uint64 { return e.Chosen }),
		outcomes("endpoint_leases_ended_total", "Leases ended there, by how they ended.",
			outcome("completed", func(e *endpoint) uint64 { return e.Completed }),
			outcome("failed", func(e *endpoint) uint64 { return e.Failed }),
			outcome("cancelled", func(e *endpoint) uint64 { return e.Cancelled }),
			outcome("refused", func(e *endpoint) uint64 { return e.Refused })),

		gaugeIfKnown("endpoint_reported_requests", "Requests there, running and waiting, as last reported; absent where unknown.",
			func(e *endpoint) (float64, bool) { return reported(e.Requests) }),
		gaugeIfKnown("endpoint_reported_waiting_requests", "Requests waiting there, as last reported; absent where unknown.",
			func(e *endpoint) (float64, bool) { return reported(e.Waiting) }),
		gaugeIfKnown("endpoint_reported_kv_usage_ratio", "Share of the KV memory in use, 0 to 1, as last reported; absent where unknown.",
			func(e *endpoint) (float64, bool) { return reported(e.KVShare) }),
		gaugeIfKnown("endpoint_telemetry_age_seconds", "Age of the newest load readings; absent where there are none.",
			func(e *endpoint) (float64, bool) { return e.Age.Seconds(), e.Freshness != telemetry.Missing }),
		oneHot("endpoint_telemetry_freshness", "1 for the freshness of the newest load readings.", "state",
			func(e *endpoint) string { return e.Freshness.String() },
			telemetry.Fresh.String(), telemetry.Aging.String(), telemetry.Stale.String(), telemetry.Missing.String()),
		oneHot("endpoint_telemetry_suspect", "1 for the reason for which the readings are not believed.", "reason",
			func(e *endpoint) string { return string(e.Suspect) },
			string(telemetry.SuspectFrozen), string(telemetry.SuspectWedged)),

		gauge("endpoint_silence_seconds",
			"Time without a sign of life while leases wait there for their first token, or what is remembered of it; 0 = none.",
			func(e *endpoint) float64 { return e.Silence.Seconds() }),

		oneHot("endpoint_readiness", "1 for the readiness set by the host.", "state", readiness,
			"ready", router.Draining.String(), router.Asleep.String()),
		oneHot("endpoint_circuit", "1 for the state of the circuit breaker.", "state",
			func(e *endpoint) string { return e.Circuit }, "closed", "open", "half-open"),
		counter("endpoint_circuit_opened_total", "How often the circuit breaker has opened.", func(e *endpoint) uint64 { return e.Opened }),

		gaugeIfKnown("endpoint_request_limit", "Requests that the adaptive limit allows there; absent where it is off.",
			func(e *endpoint) (float64, bool) {
				if e.Limiter == nil {
					return 0, false
				}
				return float64(e.Limiter.Limit), true
			}),

		gauge("endpoint_cached_tokens", "Tokens that the prefix index believes it to hold.", func(e *endpoint) int64 { return e.CachedTokens }),
		gauge("endpoint_cache_exact", "1 where the endpoint's own events say what it holds, 0 where it follows from what was routed there.",
			func(e *endpoint) int {
				if e.ExactCache {
					return 1
				}
				return 0
			}),
	}
}

// reported takes a figure of which a negative value means unknown.
func reported(value float64) (float64, bool) { return value, value >= 0 }

func readiness(e *endpoint) string {
	if e.State == router.NoReason {
		return "ready"
	}
	return e.State.String()
}
