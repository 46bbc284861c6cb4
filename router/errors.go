package router

import (
	"errors"
	"fmt"
	"time"
)

// The reasons for which a request is not placed. Match them with errors.Is; the error itself is a [*RejectError].
var (
	// ErrNoEndpoints: no endpoint can serve the request: none there, none ready, none with the model.
	ErrNoEndpoints = errors.New("router: no endpoint can serve the request")
	// ErrTooLong: every endpoint that could serve it has less KV memory than the prompt needs. Waiting does not help.
	ErrTooLong = errors.New("router: the prompt is longer than the memory of every endpoint")
	// ErrSaturated: endpoints could serve it, and every one of them, or the pool, is at a cap.
	ErrSaturated = errors.New("router: every endpoint is at a cap")
	// ErrQueueFull: the queue in front of the pool has no place left, or had to give that of the request to another. See Config.Queue.
	ErrQueueFull = errors.New("router: the queue is full")
	// ErrQueueTimeout: it waited as long as the queue allows.
	ErrQueueTimeout = errors.New("router: waited too long in the queue")
	// ErrDeadline: its deadline has passed, or will have passed wherever it could be served, also while it waits.
	ErrDeadline = errors.New("router: the deadline cannot be met")
	// ErrTelemetryIncomplete: no endpoint has usable telemetry, and the pool is told to fail closed; or requests wait on engines, and
	// seeds cannot be given since readings are missing or old, see SeedTelemetry.
	ErrTelemetryIncomplete = errors.New("router: telemetry is incomplete")
)

// RejectError says why a request was not placed. It wraps one of the sentinels. It belongs to the caller.
type RejectError struct {
	// Reason is the sentinel.
	Reason error
	// Because is the one reason for which every endpoint was left out, e.g. ModelNotServed or CapTenant; NoReason where the
	// reasons differ or there are no endpoints.
	Because Reason
	// RetryAfter is how long the caller should wait, in whole seconds from 1 to 30: for a saturated pool and a full queue by the rate
	// at which leases have been ending, for want of endpoints until an open circuit is probed. 0 = unknown.
	RetryAfter time.Duration
	// Decision holds what was considered; its Candidates are filled in when the request was sampled or scored. Of a request that
	// the queue refuses (full, timed out, deadline missed in it) it holds how long it waited, and no candidates.
	Decision Decision
}

// Error is the sentinel's text, with the reason for which every endpoint was left out where they share one.
func (e *RejectError) Error() string {
	if e.Because == NoReason {
		return e.Reason.Error()
	}
	return fmt.Sprintf("%v (%v)", e.Reason, e.Because)
}

// Unwrap returns the sentinel.
func (e *RejectError) Unwrap() error { return e.Reason }

// Code is the short name of the reason: no-endpoints, too-long, saturated, queue-full, queue-timeout, deadline or
// telemetry-incomplete.
func (e *RejectError) Code() string { return rejectCode(e.Reason) }

// rejections are the codes of rejections, in the order of [rejection].
var rejections = [...]string{
	"no-endpoints", "too-long", "saturated", "queue-full", "queue-timeout", "deadline", "telemetry-incomplete", "unknown",
}

// RejectCodes lists every code that [RejectError.Code] can return.
func RejectCodes() []string {
	all := rejections
	return all[:]
}

// sentinels are the reasons in the order of their codes.
func sentinels() [len(rejections) - 1]error {
	return [...]error{ErrNoEndpoints, ErrTooLong, ErrSaturated, ErrQueueFull, ErrQueueTimeout, ErrDeadline, ErrTelemetryIncomplete}
}

// rejection is the index of a sentinel in rejections.
func rejection(reason error) int {
	for i, err := range sentinels() {
		if errors.Is(reason, err) {
			return i
		}
	}
	return len(rejections) - 1
}

// reasonOf is the sentinel of a code; nil for an unknown one.
func reasonOf(code string) error {
	for i, err := range sentinels() {
		if rejections[i] == code {
			return err
		}
	}
	return nil
}

func rejectCode(reason error) string { return rejections[rejection(reason)] }

func unknownName(kind, name string) error { return fmt.Errorf("router: unknown %s %q", kind, name) }

func unknownEndpoint(id string) error {
	return fmt.Errorf("router: endpoint %q is not in the pool", id)
}

func replacedEndpoint(id, incarnation string) error {
	return fmt.Errorf("router: incarnation %q of endpoint %q is not in the pool", incarnation, id)
}
