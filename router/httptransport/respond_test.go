package httptransport_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
)

func TestWriteError(t *testing.T) {
	reject := func(reason error, after time.Duration) error {
		return fmt.Errorf("wrapped: %w", &router.RejectError{Reason: reason, RetryAfter: after})
	}
	because := func(reason error, because router.Reason) error {
		return &router.RejectError{Reason: reason, Because: because}
	}
	for _, c := range []struct {
		name   string
		err    error
		status int
		kind   string
		code   any
		after  string
	}{
		{"a model of nobody", because(router.ErrNoEndpoints, router.ModelNotServed), 404, "invalid_request_error", "model_not_found", ""},
		{"too late for a model of nobody", because(router.ErrDeadline, router.ModelNotServed), 504, "server_error", "deadline", ""},
		{"the tenant's own cap", because(router.ErrSaturated, router.CapTenant), 429, "rate_limit_error", "tenant_limit", ""},
		{"the tenant's own cap of tokens", because(router.ErrSaturated, router.CapTenantTokens), 429, "rate_limit_error", "tenant_token_limit", ""},
		{"another cap", because(router.ErrSaturated, router.CapAggregate), 429, "rate_limit_error", "saturated", ""},
		{"a tenant's cap, and late", because(router.ErrDeadline, router.CapTenantTokens), 504, "server_error", "deadline", ""},
		{"a part of a second", reject(router.ErrSaturated, 200*time.Millisecond), 429, "rate_limit_error", "saturated", "1"},
		{"a second and a part", reject(router.ErrQueueFull, 1200*time.Millisecond), 429, "rate_limit_error", "queue_full", "2"},
		{"an hour", reject(router.ErrSaturated, time.Hour), 429, "rate_limit_error", "saturated", "30"},
		{"late, whenever it comes back", reject(router.ErrDeadline, time.Second), 504, "server_error", "deadline", ""},
		{"no telemetry, and a cap", because(router.ErrTelemetryIncomplete, router.CapTenant), 503, "server_error", "telemetry_incomplete", ""},
		{"saturated", reject(router.ErrSaturated, 3*time.Second), 429, "rate_limit_error", "saturated", "3"},
		{"saturated, nobody knows how long", reject(router.ErrSaturated, 0), 429, "rate_limit_error", "saturated", ""},
		{"queue full", reject(router.ErrQueueFull, time.Second), 429, "rate_limit_error", "queue_full", "1"},
		{"queue timeout", reject(router.ErrQueueTimeout, 0), 429, "rate_limit_error", "queue_timeout", ""},
		{"nobody", reject(router.ErrNoEndpoints, 0), 503, "server_error", "no_endpoints", ""},
		{"nobody for a while", reject(router.ErrNoEndpoints, 5*time.Second), 503, "server_error", "no_endpoints", "5"},
		{"telemetry", reject(router.ErrTelemetryIncomplete, 0), 503, "server_error", "telemetry_incomplete", ""},
		{"too long", reject(router.ErrTooLong, time.Second), 400, "invalid_request_error", "context_length_exceeded", ""},
		{"deadline", reject(router.ErrDeadline, 0), 504, "server_error", "deadline", ""},
		{"upstream", &httptransport.UpstreamError{Endpoint: "a", Err: errors.New("dial 10.1.2.3")}, 502, "server_error", "upstream_failed", ""},
		{"upstream's own timeout", &httptransport.UpstreamError{Err: context.DeadlineExceeded}, 502, "server_error", "upstream_failed", ""},
		{"stream", &httptransport.StreamError{}, 502, "server_error", "upstream_failed", ""},
		{"client gone", fmt.Errorf("x: %w", context.Canceled), 499, "invalid_request_error", "cancelled", ""},
		{"client's deadline", context.DeadlineExceeded, 504, "server_error", "deadline", ""},
		{"request", &httptransport.RequestError{Message: "no good", Param: "p", Code: "c"}, 400, "invalid_request_error", "c", ""},
		{"request with a wrong status", &httptransport.RequestError{Status: 200}, 400, "invalid_request_error", nil, ""},
		{"request with a status", &httptransport.RequestError{Status: 415}, 415, "invalid_request_error", nil, ""},
		{"too large", &http.MaxBytesError{Limit: 5}, 413, "invalid_request_error", "request_too_large", ""},
		{"anything", errors.New("10.1.2.3"), 500, "server_error", "internal_error", ""},
		{"nil", nil, 500, "server_error", "internal_error", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := httptest.NewRecorder()
			w.Header().Set("Content-Length", "5")
			httptransport.ErrorHandler(w, nil, c.err)
			require.Equal(t, c.status, w.Code)
			require.Equal(t, c.after, w.Header().Get("Retry-After"))
			require.Equal(t, "application/json", w.Header().Get("Content-Type"))
			require.Empty(t, w.Header().Get("Content-Length"))
			require.NotContains(t, w.Body.String(), "10.1.2.3")
			var body map[string]map[string]any
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body))
			e := body["error"]
			require.Len(t, e, 4)
			require.Equal(t, c.kind, e["type"])
			require.Equal(t, c.code, e["code"])
			require.NotEmpty(t, e["message"])
			switch c.name {
			case "request":
				require.Equal(t, "p", e["param"])
				require.Equal(t, "No good.", e["message"])
			case "a model of nobody":
				require.Equal(t, "model", e["param"])
			default:
				require.Nil(t, e["param"])
			}
		})
	}
}
