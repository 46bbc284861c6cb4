package httptransport

import (
	"fmt"
	"net/http"
	"strings"
)

// UpstreamError says that an endpoint failed before its response headers. It is a plain value.
type UpstreamError struct {
	// Endpoint is the id of the endpoint that failed last.
	Endpoint string
	// Attempts is the number of endpoints that were tried, 1 or more.
	Attempts int
	// Err is the last failure.
	Err error
}

// Error names the endpoint and the failure. The text may contain addresses: it is for logs, not for clients.
func (e *UpstreamError) Error() string {
	cause := strings.TrimPrefix(fmt.Sprint(e.Err), "httptransport: ")
	return fmt.Sprintf("httptransport: endpoint %q failed (attempt %d): %s", e.Endpoint, e.Attempts, cause)
}

// Unwrap returns the failure.
func (e *UpstreamError) Unwrap() error { return e.Err }

// StatusError is the failure of a lease whose endpoint answered with a failing status. It is a plain value.
type StatusError struct {
	// Code is the HTTP status.
	Code int
}

// Error names the status.
func (e *StatusError) Error() string {
	return fmt.Sprintf("httptransport: the endpoint answered %d %s", e.Code, http.StatusText(e.Code))
}

// StreamError is the failure of a lease whose endpoint put an error into its stream of events. It is a plain value; the
// engine's own text is not part of it, since it may quote the prompt.
type StreamError struct {
	// Code is the error's code, 0 where it has none.
	Code int
}

// Error names the code.
func (e *StreamError) Error() string {
	return fmt.Sprintf("httptransport: the stream carries an error event, code %d", e.Code)
}

// RequestError says what is wrong with a request before it has been sent anywhere. A describer may return one; any other
// error of a describer is answered like Status 400. It is a plain value.
type RequestError struct {
	// Status is the HTTP status to answer with, 400 to 499; 0 = 400.
	Status int
	// Param is the field of the body that is wrong, and Code a short name of the fault; both may be empty.
	Param, Code string
	// Message is a sentence for the client.
	Message string
	// Err is the cause, for errors.Is and As; may be nil.
	Err error
}

// Error is the message.
func (e *RequestError) Error() string { return "httptransport: " + e.Message }

// Unwrap returns the cause.
func (e *RequestError) Unwrap() error { return e.Err }
