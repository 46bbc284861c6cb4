package httptransport

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/isobar-go/isobar/router"
)

// StatusClientClosedRequest is the status noted for a client that gave up before its answer began: 499, by the custom of
// proxies. Nobody receives it.
const StatusClientClosedRequest = 499

// apiError is an error in OpenAI's shape.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// WriteError answers a request with the error of a Transport, in the shape of OpenAI's API. The statuses are
//
//	429  saturated, the queue full or waited in too long; Retry-After where the router knows it
//	503  no endpoint, or telemetry incomplete with FailClosed; Retry-After likewise
//	400  prompt too long for every endpoint, or a faulty request (or the status of the RequestError)
//	404  a model that no endpoint serves
//	413  body too large
//	415  body compressed (see OpenAI.Describe)
//	504  deadline passed, or it cannot be met
//	499  client gave up
//	502  the endpoint failed
//	500  anything else
//
// Addresses and texts of endpoints are not passed on.
func WriteError(w http.ResponseWriter, err error) {
	status, body := ErrorBody(err)
	h := w.Header()
	for _, stale := range []string{"Content-Length", "Content-Encoding", "Etag", "Last-Modified", "Cache-Control"} {
		h.Del(stale)
	}
	h.Set("Content-Type", "application/json")
	var reject *router.RejectError
	if errors.As(err, &reject) && reject.RetryAfter > 0 && (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable) {
		h.Set("Retry-After", strconv.Itoa(wholeSeconds(reject.RetryAfter)))
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // fails only where the client has gone
}

// wholeSeconds is what a Retry-After header says of a wait: rounded up, from 1 to 30.
func wholeSeconds(d time.Duration) int {
	return int(min(max((d+time.Second-1)/time.Second, 1), 30))
}

// ErrorHandler is WriteError as the ErrorHandler of an httputil.ReverseProxy.
// It notes the error nowhere; see [LogErrors].
func ErrorHandler(w http.ResponseWriter, _ *http.Request, err error) { WriteError(w, err) }

// LogErrors makes an ErrorHandler that notes what it answers with a status of 500 and up, at level Warn: the status, the
// X-Request-Id of the request and the error, which is the cause that the client is not told. A deadline that the router has
// found too short is noted at level Info, and what a client has brought about itself not at all. A nil log notes nothing.
func LogErrors(log *slog.Logger) func(http.ResponseWriter, *http.Request, error) {
	if log == nil {
		return ErrorHandler
	}
	return func(w http.ResponseWriter, r *http.Request, err error) {
		if status, _ := answer(err); status >= http.StatusInternalServerError {
			level := slog.LevelWarn
			if errors.Is(err, router.ErrDeadline) {
				level = slog.LevelInfo
			}
			log.LogAttrs(r.Context(), level, "request failed", slog.String("request_id", shortID(r.Header.Get("X-Request-Id"))),
				slog.Int("status", status), slog.Any("error", err))
		}
		WriteError(w, err)
	}
}

// shortID is what is logged of an id, which a client may have made up.
func shortID(id string) string { return id[:min(len(id), 128)] }

// ErrorBody returns the status and the JSON document that WriteError answers with. A nil error gives 500.
func ErrorBody(err error) (status int, body []byte) {
	status, e := answer(err)
	body, err = json.Marshal(map[string]apiError{"error": e})
	if err != nil { // no value of this type does
		body = []byte(`{"error":{"message":"internal error","type":"server_error","param":null,"code":null}}`)
	}
	return status, append(body, '\n')
}

func answer(err error) (int, apiError) {
	var reject *router.RejectError
	var request *RequestError
	var upstream *UpstreamError
	var stream *StreamError
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &reject):
		return rejected(reject)
	case errors.As(err, &upstream), errors.As(err, &stream):
		return http.StatusBadGateway, serverError("The engine that served the request failed.", "upstream_failed")
	case errors.As(err, &request):
		status := request.Status
		if status < 400 || status > 499 {
			status = http.StatusBadRequest
		}
		e := apiError{Message: sentence(request.Message), Type: "invalid_request_error"}
		if request.Param != "" {
			e.Param = &request.Param
		}
		if request.Code != "" {
			e.Code = &request.Code
		}
		return status, e
	case errors.As(err, &large):
		return answer(tooLarge(large.Limit, err))
	case errors.Is(err, context.Canceled):
		return StatusClientClosedRequest, apiError{
			Message: "The client closed the request.", Type: "invalid_request_error", Code: pointer("cancelled"),
		}
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout, serverError("The deadline of the request has passed.", "deadline")
	}
	return http.StatusInternalServerError, serverError("Internal error.", "internal_error")
}

func rejected(e *router.RejectError) (int, apiError) {
	name := strings.ReplaceAll(e.Code(), "-", "_")
	switch {
	case errors.Is(e, router.ErrNoEndpoints) && e.Because == router.ModelNotServed:
		return http.StatusNotFound, apiError{
			Message: "No engine serves that model.", Type: "invalid_request_error", Param: pointer("model"), Code: pointer("model_not_found"),
		}
	case errors.Is(e, router.ErrSaturated) && e.Because == router.CapTenant:
		return http.StatusTooManyRequests, apiError{
			Message: "Too many of your requests are open. Try again when one has ended.", Type: "rate_limit_error", Code: pointer("tenant_limit"),
		}
	case errors.Is(e, router.ErrSaturated) && e.Because == router.CapTenantTokens:
		return http.StatusTooManyRequests, apiError{
			Message: "This request and those of yours that are open have more tokens than you may have open at once. " +
				"Try again when one has ended, or with a smaller one.",
			Type: "rate_limit_error", Code: pointer("tenant_token_limit"),
		}
	case errors.Is(e, router.ErrSaturated):
		return http.StatusTooManyRequests, apiError{
			Message: "Every engine is at its limit. Try again later.", Type: "rate_limit_error", Code: &name,
		}
	case errors.Is(e, router.ErrQueueTimeout):
		return http.StatusTooManyRequests, apiError{
			Message: "No engine had room for as long as a request may wait. Try again later.", Type: "rate_limit_error", Code: &name,
		}
	case errors.Is(e, router.ErrQueueFull):
		return http.StatusTooManyRequests, apiError{
			Message: "Too many requests are waiting. Try again later.", Type: "rate_limit_error", Code: &name,
		}
	case errors.Is(e, router.ErrTooLong):
		return http.StatusBadRequest, apiError{Message: "The prompt is longer than the memory of every engine.", Type: "invalid_request_error",
			Code: pointer("context_length_exceeded")}
	case errors.Is(e, router.ErrDeadline):
		return http.StatusGatewayTimeout, serverError("The deadline of the request has passed, or cannot be met.", name)
	case errors.Is(e, router.ErrTelemetryIncomplete):
		return http.StatusServiceUnavailable, serverError("The state of the engines is not known at present.", name)
	}
	return http.StatusServiceUnavailable, serverError("No engine can serve the request at present.", name)
}

func serverError(message, name string) apiError {
	return apiError{Message: message, Type: "server_error", Code: &name}
}

func pointer(s string) *string { return &s }

// sentence begins with a capital and ends with a full stop.
func sentence(s string) string {
	if s == "" {
		return "The request is faulty."
	}
	if s[0] >= 'a' && s[0] <= 'z' {
		s = string(s[0]-'a'+'A') + s[1:]
	}
	return strings.TrimSuffix(s, ".") + "."
}
