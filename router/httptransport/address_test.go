package httptransport_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
)

func TestAddressesHideCredentials(t *testing.T) {
	for _, c := range []struct{ address, want string }{
		{"http://host:8000/base", "http://host:8000/base"},
		{"http://user:secret@host/base?key=secret", "http://xxxxx@host/base?xxxxx"},
		{"https://secret@host", "https://xxxxx@host"},
		{"http://user:sec/ret@host/x", "http://xxxxx@host/x"}, // a faulty port to the parser
		{"http://user:secret@ho st/x?key=secret", "http://xxxxx@ho st/x"},
		{"http:user:secret@host", "xxxxx@host"},
		{"user:secret@host:80", "xxxxx@host:80"},
		{"", ""},
	} {
		require.Equal(t, c.want, httptransport.RedactAddress(c.address))
		if err := httptransport.ValidateAddress(c.address); err != nil {
			require.NotContains(t, err.Error(), "sec")
			p := pool(t, router.Config{}, c.address)
			_, err = transport(t, p).RoundTrip(request(t, http.MethodGet, ""))
			require.Error(t, err)
			require.NotContains(t, err.Error(), "sec")
		}
	}
	require.NoError(t, httptransport.ValidateAddress("http://user:secret@host/base?key=1"))
}

// TestAddressesAreRememberedWithinBounds: each is parsed once, and those of endpoints long gone do not pile up.
func TestAddressesAreRememberedWithinBounds(t *testing.T) {
	tr := transport(t, pool(t, router.Config{}, "http://a"))
	require.Error(t, tr.Parse("nonsense"))
	require.Zero(t, tr.Addresses())
	for range 3 {
		require.NoError(t, tr.Parse("http://a"))
	}
	require.Equal(t, 1, tr.Addresses())
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range 100 {
				if err := tr.Parse(fmt.Sprintf("http://%d-%d", g, i)); err != nil {
					panic(err)
				}
			}
		})
	}
	all.Wait()
	for i := range httptransport.MaxAddresses + 10 {
		require.NoError(t, tr.Parse(fmt.Sprintf("http://h%d", i)))
		if i%500 == 0 {
			require.LessOrEqual(t, tr.Addresses(), httptransport.MaxAddresses)
		}
	}
	require.LessOrEqual(t, tr.Addresses(), httptransport.MaxAddresses)
	require.Positive(t, tr.Addresses())
}

// logged is a logger and what it has written.
func logged(level slog.Level) (*slog.Logger, *bytes.Buffer) {
	var b bytes.Buffer
	return slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: level})), &b
}

// TestFailedAttemptsAreLogged: each once, whatever way it failed and even where another endpoint makes up for it; what the
// caller has brought about is not.
func TestFailedAttemptsAreLogged(t *testing.T) {
	good := server(t, said).URL
	handler := func(h func(w http.ResponseWriter)) string {
		return server(t, func(w http.ResponseWriter, _ *http.Request) { h(w) }).URL
	}
	status := func(code int) string { return handler(func(w http.ResponseWriter) { w.WriteHeader(code) }) }
	for _, c := range []struct {
		name, address, want, level string
	}{
		{"refused", refused(t), "refused", "WARN"},
		{"status", status(503), "503 Service Unavailable", "WARN"},
		{"overload", status(429), "429 Too Many Requests", "INFO"},
		{"address", "nonsense", "Address = ", "WARN"},
		{"error event", handler(func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", sse)
			send(w, `data: {"error":{"code":500}}`+"\n\n")
		}), "code 500", "WARN"},
		{"broken body", handler(func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", sse)
			send(w, chunk(1))
			reset(w)
		}), "error=", "WARN"},
		{"fine", good, "", ""},
		{"the caller's fault", status(400), "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := pool(t, router.Config{Policy: router.RoundRobin()}, c.address, good)
			tr := transport(t, p)
			log, lines := logged(slog.LevelInfo)
			tr.Log = log
			tr.Describe = httptransport.OpenAI{}.Describe
			req := request(t, http.MethodPost, `{"prompt":"a secret","user":"a secret"}`)
			req.Header.Set("Authorization", "Bearer secret")
			req.Header.Set("X-Request-Id", "id-7")
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			drained(t, p)
			if c.want == "" {
				require.Empty(t, lines.String())
				return
			}
			require.Equal(t, 1, strings.Count(lines.String(), "\n"), lines.String())
			for _, part := range []string{"level=" + c.level, "request_id=id-7", "endpoint=a", "attempt=1", c.want} {
				require.Contains(t, lines.String(), part)
			}
			require.NotContains(t, lines.String(), "secret")
		})
	}
}

func TestLogErrors(t *testing.T) {
	log, lines := logged(slog.LevelDebug)
	handle := httptransport.LogErrors(log)
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set("X-Request-Id", strings.Repeat("i", 500))
	cause := &httptransport.UpstreamError{Endpoint: "a", Attempts: 2, Err: errors.New("connection reset")}
	w := httptest.NewRecorder()
	handle(w, r, cause)
	require.Equal(t, http.StatusBadGateway, w.Code)
	require.NotContains(t, w.Body.String(), "reset")
	for _, part := range []string{"status=502", "connection reset", `endpoint \"a\"`, "attempt 2", "request_id=" + strings.Repeat("i", 128) + " "} {
		require.Contains(t, lines.String(), part)
	}
	lines.Reset()
	w = httptest.NewRecorder()
	handle(w, r, &router.RejectError{Reason: router.ErrSaturated})
	require.Equal(t, http.StatusTooManyRequests, w.Code)
	require.Empty(t, lines.String(), "the client is told, and can act")
	handle(httptest.NewRecorder(), r, &router.RejectError{Reason: router.ErrDeadline})
	require.Contains(t, lines.String(), "level=INFO")
	require.NotContains(t, lines.String(), "level=WARN", "an overload fills no log")
	w = httptest.NewRecorder()
	httptransport.LogErrors(nil)(w, r, cause)
	require.Equal(t, http.StatusBadGateway, w.Code)
}

// TestTenantLimitIsTold: a tenant at its own cap is not told of engines that are full.
func TestTenantLimitIsTold(t *testing.T) {
	p := pool(t, router.Config{Caps: admission.Caps{Tenant: 1}}, "http://a", "http://b")
	held, err := p.Reserve(t.Context(), router.Request{Tenant: "t"})
	require.NoError(t, err)
	tr := transport(t, p)
	tr.Describe = func(*http.Request) (router.Request, error) { return router.Request{Tenant: "t"}, nil }
	_, err = tr.RoundTrip(request(t, http.MethodGet, ""))
	status, body := httptransport.ErrorBody(err)
	require.Equal(t, http.StatusTooManyRequests, status)
	require.Contains(t, string(body), `"tenant_limit"`)
	require.NotContains(t, string(body), "engine")
	held.Cancel()

	p = pool(t, router.Config{Caps: admission.Caps{TenantTokens: 100}}, "http://a", "http://b")
	held, err = p.Reserve(t.Context(), router.Request{Tenant: "t", PromptTokens: 60, MaxOutputTokens: 20})
	require.NoError(t, err)
	defer held.Cancel()
	tr = transport(t, p)
	tr.Describe = func(*http.Request) (router.Request, error) {
		return router.Request{Tenant: "t", PromptTokens: 20, MaxOutputTokens: 20}, nil
	}
	_, err = tr.RoundTrip(request(t, http.MethodGet, ""))
	status, body = httptransport.ErrorBody(err)
	require.Equal(t, http.StatusTooManyRequests, status)
	require.Contains(t, string(body), `"tenant_token_limit"`)
	require.NotContains(t, string(body), "engine")
}
