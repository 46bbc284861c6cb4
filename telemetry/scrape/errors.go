package scrape

import (
	"errors"
	"fmt"
)

// ErrRunning is returned by Run while another call of it has not returned.
var ErrRunning = errors.New("scrape: Run is under way already")

// Causes of failures of the poller's own.
var (
	errTooLarge = errors.New("document too large")
	errRedirect = errors.New("redirect not followed")
)

// Reason says in one word why a poll failed. The zero value is no failure. It is a plain value.
type Reason string

// Reasons of failed polls.
const (
	// ReasonNone: there was no failure.
	ReasonNone Reason = ""
	// ReasonTarget: the target's URL or Engine is none that can be used.
	ReasonTarget Reason = "target"
	// ReasonTimeout: the whole answer was not there in time.
	ReasonTimeout Reason = "timeout"
	// ReasonConnection: no response came: name, connection or TLS.
	ReasonConnection Reason = "connection"
	// ReasonRedirect: a redirect too many, or to another host.
	ReasonRedirect Reason = "redirect"
	// ReasonStatus: another status than 200.
	ReasonStatus Reason = "status"
	// ReasonContent: a media type that holds no metrics, or an unknown encoding.
	ReasonContent Reason = "content"
	// ReasonTooLarge: more than MaxBytes, or more entries or ranks than package engine takes.
	ReasonTooLarge Reason = "too-large"
	// ReasonBody: the body broke off or is not the gzip that it claims to be.
	ReasonBody Reason = "body"
	// ReasonParse: the parser found no metrics in it.
	ReasonParse Reason = "parse"
	// ReasonSink: the sink did not take the snapshot.
	ReasonSink Reason = "sink"
)

// Error is a failed poll. The poller does not change one that it has handed out; any number of goroutines may read it.
type Error struct {
	// ID is the endpoint's.
	ID string
	// Reason is never ReasonNone.
	Reason Reason
	// Status is the HTTP status where Reason is ReasonStatus, else 0.
	Status int
	// Err is the cause. It is nil where Reason says all, and never names the URL, which may hold a secret.
	Err error
}

// Error names the endpoint, the reason and the cause.
func (e *Error) Error() string {
	switch {
	case e.Reason == ReasonStatus:
		return fmt.Sprintf("scrape: endpoint %q: status %d", e.ID, e.Status)
	case e.Err == nil:
		return fmt.Sprintf("scrape: endpoint %q: %s", e.ID, e.Reason)
	}
	return fmt.Sprintf("scrape: endpoint %q: %s: %v", e.ID, e.Reason, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
