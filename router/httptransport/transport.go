package httptransport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry/engine"
)

const (
	// DefaultRetries is the number of retries where Transport.Retries is 0.
	DefaultRetries = 2
	// DefaultReplayBytes is the bound where Transport.ReplayBytes is 0: 1 MiB.
	DefaultReplayBytes = 1 << 20
)

// Transport is an http.RoundTripper that sends each request to the endpoint that a router chooses. Only Pool is required.
// Any number of goroutines may use one; its fields must not be changed meanwhile.
type Transport struct {
	// Pool chooses the endpoints and holds the leases.
	Pool router.Router
	// Base sends the requests; nil = http.DefaultTransport.
	Base http.RoundTripper
	// Describe says what a request costs and needs; nil = nothing is known of any request. The request it is given is
	// the transport's own copy: it may read the Body if it puts another in its place, together with GetBody and
	// ContentLength, and change the headers. Where it sets no Deadline, that of the request's context is used; without Describe it
	// is not, since nothing could be predicted. An error ends the request before anything is reserved. See OpenAI.
	Describe func(*http.Request) (router.Request, error)
	// Retries is how many further endpoints a request may be sent to when one has failed before the first byte. Default
	// 2; negative = none.
	Retries int
	// RetryStatus says for which status another endpoint is tried; nil = 429, 502, 503 and 504. It may name statuses that
	// are no failure of the endpoint, too.
	RetryStatus func(status int) bool
	// ReplayBytes is the largest request body without GetBody, in bytes, that is read into memory before anything is
	// reserved, so that it can be sent again. Only a body of known length is. Default 1 MiB; negative = none.
	ReplayBytes int64
	// Log is where every attempt that failed is noted with its cause, also one that was made up for by another endpoint and one
	// that broke in the middle of its body: at level Warn, and a refusal (429) at level Info. A line names request id, endpoint
	// and attempt, but no prompt, key or tenant. nil = nowhere.
	//
	// A load report that cannot be used is noted at level Debug.
	Log *slog.Logger

	// Loads is told the load reports that responses carry, in their headers or trailers; nil = nobody. *router.Pool is one.
	Loads Loads
	// LoadFormat asks the endpoints for load reports in this format, engine.LoadText or engine.LoadJSON, in place of what the
	// caller asked for, and takes the reports out of the responses: they are no business of a proxy's clients. "" = they are
	// not asked. A report that the caller has asked for, or nobody, is read in either format and stays in the response.
	LoadFormat string
	// Now is the clock of load reports, the same as that of Loads; nil = time.Now.
	Now func() time.Time

	addresses addresses
}

// Validate reports what makes the transport unusable.
func (t *Transport) Validate() error {
	if p, ok := t.Pool.(*router.Pool); t.Pool == nil || ok && p == nil {
		return errors.New("httptransport: Transport field Pool is nil")
	}
	if p, ok := t.Loads.(*router.Pool); ok && p == nil {
		return errors.New("httptransport: Transport field Loads is a nil *router.Pool")
	}
	switch t.LoadFormat {
	case "", engine.LoadText, engine.LoadJSON:
		return nil
	}
	return fmt.Errorf("httptransport: Transport field LoadFormat = %.20q is neither %s nor %s", t.LoadFormat, engine.LoadText, engine.LoadJSON)
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

func (t *Transport) retries() int {
	if t.Retries == 0 {
		return DefaultRetries
	}
	return max(t.Retries, 0)
}

func (t *Transport) replayBytes() int64 {
	if t.ReplayBytes == 0 {
		return DefaultReplayBytes
	}
	return max(t.ReplayBytes, 0)
}

// CloseIdleConnections does so for Base, if Base can.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Route is where a request was sent. It is a plain value.
type Route struct {
	// Lease is the lease of the endpoint. It belongs to the transport, which ends it.
	Lease *router.Lease
	// Failed are the ids of the endpoints that were tried before.
	Failed []string
}

type routeKey struct{}

// RouteFrom returns the route of a request that a Transport has sent: that of a response is RouteFrom of its
// Request's context. A Base can read it, too. The second result says whether there is one.
func RouteFrom(ctx context.Context) (Route, bool) {
	r, ok := ctx.Value(routeKey{}).(Route)
	return r, ok
}

// RoundTrip reserves an endpoint and sends the request there. The error is one of
//
//   - a [*router.RejectError]: nobody can serve it now;
//   - a [*RequestError]: something is wrong with the request itself;
//   - an [*UpstreamError]: an endpoint failed before its headers, and no other was tried or left;
//   - the error of the request's context;
//   - an error of the router, or of this transport's configuration.
//
// The last answer of an endpoint counts: where a retry finds no other endpoint, the failed response is returned as it is;
// where it finds them all at their limits, the rejection.
func (t *Transport) RoundTrip(in *http.Request) (*http.Response, error) {
	if err := t.Validate(); err != nil {
		closeBody(in)
		return nil, err
	}
	if err := complete(in); err != nil {
		closeBody(in)
		return nil, err
	}
	c, err := t.prepare(in)
	if err != nil {
		return nil, err
	}
	var last *http.Response
	var lastErr error
	for {
		lease, err := c.reserve()
		if err != nil {
			switch {
			case len(c.failed) == 0:
				closeBody(c.req)
			case c.ctx.Err() != nil || full(err):
				discard(last)
			default: // the endpoint's own answer says more than that there is no other
				return last, lastErr
			}
			return nil, err
		}
		discard(last)
		var again bool
		last, lastErr, again = c.send(lease)
		if !again || c.replay == nil || len(c.failed) >= t.retries() {
			return last, lastErr
		}
		c.failed = append(c.failed[:len(c.failed):len(c.failed)], lease.Endpoint().ID)
	}
}

// complete says whether a request has the parts that no server's or client's request lacks.
func complete(r *http.Request) error {
	switch {
	case r.URL == nil:
		return &RequestError{Message: "the request has no URL"}
	case r.Header == nil:
		return &RequestError{Message: "the request has no header map"}
	}
	return nil
}

// full says that there are other endpoints, but no place on them.
func full(err error) bool {
	for _, reason := range []error{router.ErrSaturated, router.ErrQueueFull, router.ErrQueueTimeout, router.ErrDeadline} {
		if errors.Is(err, reason) {
			return true
		}
	}
	return false
}

// call is one request on its way through the attempts.
type call struct {
	t    *Transport
	ctx  context.Context
	req  *http.Request // the transport's own copy
	desc router.Request
	// replay opens the body once more; nil = it cannot be sent again.
	replay func() (io.ReadCloser, error)
	upload *upload  // the body as the caller gave it; nil = none
	failed []string // endpoints that failed it
}

// prepare makes the transport's own copy of a request and finds out what it needs. Nothing is reserved before the body is
// there, as far as it is read at all: a slow client holds no lease.
func (t *Transport) prepare(in *http.Request) (*call, error) {
	c := &call{t: t, ctx: in.Context(), req: in.Clone(in.Context())}
	if in.Body != nil && in.Body != http.NoBody {
		c.upload = &upload{ReadCloser: in.Body}
		c.req.Body = c.upload
	}
	ready := false
	defer func() {
		if !ready {
			closeBody(c.req)
			c.upload.close()
		}
	}()
	if t.Describe != nil {
		desc, err := t.Describe(c.req)
		if err != nil {
			return nil, c.describeError(err)
		}
		c.desc = desc
		if at, ok := c.ctx.Deadline(); ok && desc.Deadline.IsZero() {
			c.desc.Deadline = at
		}
	}
	if t.LoadFormat != "" {
		c.req.Header.Set(engine.LoadFormatHeader, t.LoadFormat)
	}
	if err := c.desc.Validate(); err != nil {
		return nil, &RequestError{Message: "the request cannot be placed: " + err.Error(), Err: err}
	}
	if err := c.openBody(); err != nil {
		return nil, err
	}
	ready = true
	return c, nil
}

func (c *call) describeError(err error) error {
	var own *RequestError
	switch {
	case c.ctx.Err() != nil:
		return c.gone(err)
	case errors.As(err, &own):
		return err
	}
	return &RequestError{Message: err.Error(), Err: err}
}

// gone is the error of a request whose context has ended.
func (c *call) gone(err error) error {
	if cause := c.ctx.Err(); !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// openBody finds out how the body can be sent again, and reads a small one for that.
func (c *call) openBody() error {
	r := c.req
	switch {
	case r.Body == nil || r.Body == http.NoBody:
		c.replay = func() (io.ReadCloser, error) { return r.Body, nil }
	case r.GetBody != nil:
		c.replay = r.GetBody
	case c.t.retries() > 0 && r.ContentLength > 0 && r.ContentLength <= c.t.replayBytes():
		buf := make([]byte, r.ContentLength)
		if _, err := io.ReadFull(r.Body, buf); err != nil {
			return c.bodyError(err)
		}
		closeBody(r)
		c.replay = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf)), nil }
		r.Body, _ = c.replay()
	}
	if c.upload == nil || r.Body == io.ReadCloser(c.upload) {
		return nil
	}
	if c.replay != nil {
		c.upload.close() // another body stands for it
		return nil
	}
	c.upload = &upload{ReadCloser: r.Body, under: c.upload}
	r.Body = c.upload
	return nil
}

// bodyError is the error of a request whose own body could not be read.
func (c *call) bodyError(err error) error {
	if c.ctx.Err() != nil {
		return c.gone(err)
	}
	return unreadable(err)
}

func unreadable(err error) *RequestError {
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return tooLarge(large.Limit, err)
	}
	return &RequestError{Message: "the request body could not be read", Err: err}
}

func tooLarge(limit int64, err error) *RequestError {
	return &RequestError{
		Status: http.StatusRequestEntityTooLarge, Code: "request_too_large",
		Message: fmt.Sprintf("the request body is larger than %d bytes", limit), Err: err,
	}
}

// reserve asks for a lease on an endpoint that has not failed the request yet. What the caller would rather not have is
// given up before the retry is.
func (c *call) reserve() (*router.Lease, error) {
	if len(c.failed) == 0 {
		return c.t.Pool.Reserve(c.ctx, c.desc)
	}
	d := c.desc
	d.Exclude, d.ExcludeHard = slices.Concat(c.desc.Exclude, c.failed), true
	lease, err := c.t.Pool.Reserve(c.ctx, d)
	if err != nil && c.ctx.Err() == nil && len(c.desc.Exclude) > 0 && !c.desc.ExcludeHard {
		d.Exclude = c.failed
		lease, err = c.t.Pool.Reserve(c.ctx, d)
	}
	return lease, err
}

// send makes one attempt. The lease has ended on return unless the response's body ends it. The last result says that
// another endpoint may be tried.
func (c *call) send(lease *router.Lease) (resp *http.Response, err error, again bool) {
	e := &ending{
		pool: c.t.Pool, lease: lease, ctx: c.ctx, log: c.t.Log, request: c.desc.ID, attempt: len(c.failed) + 1,
		loads: c.t.Loads, asked: c.t.LoadFormat != "", now: c.t.Now,
	}
	returned := false
	defer func() {
		if !returned { // a panic of Base
			e.end(router.Outcome{Cause: router.Cancelled})
		}
	}()
	resp, err, again = c.attempt(e)
	returned = true
	return resp, err, again
}

func (c *call) attempt(e *ending) (*http.Response, error, bool) {
	endpoint := e.lease.Endpoint()
	fail := func(err error) (*http.Response, error, bool) {
		return nil, &UpstreamError{Endpoint: endpoint.ID, Attempts: e.attempt, Err: err}, true
	}
	out := c.req.WithContext(context.WithValue(c.ctx, routeKey{}, Route{Lease: e.lease, Failed: c.failed}))
	if len(c.failed) > 0 {
		body, err := c.replay()
		if err != nil {
			e.end(router.Outcome{Cause: router.Cancelled})
			return nil, &RequestError{Message: "the request body could not be read again", Err: err}, false
		}
		out.Body = body
	}
	u, err := c.target(endpoint.Address)
	if err != nil { // nothing has been sent: the fault is in the settings, and says nothing about the endpoint
		closeBody(out)
		e.end(router.Outcome{Cause: router.Cancelled})
		e.note(slog.LevelWarn, err)
		return fail(err)
	}
	out.URL, out.Host = u, ""
	resp, err := c.t.base().RoundTrip(out)
	if err != nil {
		if c.ctx.Err() != nil {
			e.end(router.Outcome{Cause: router.Cancelled})
			return nil, c.gone(err), false
		}
		if own := c.upload.failure(); own != nil {
			e.end(router.Outcome{Cause: router.Cancelled})
			return nil, unreadable(own), false
		}
		e.end(router.Outcome{Cause: router.Failed, Err: err})
		return fail(err)
	}
	if resp.Request == nil {
		resp.Request = out
	}
	if e.asked {
		delete(resp.Trailer, engine.LoadHeader) // has been declared, and is taken out when it comes
	}
	again := retryStatus(resp.StatusCode)
	if c.t.RetryStatus != nil {
		again = c.t.RetryStatus(resp.StatusCode)
	}
	if cause, ended := verdict(resp.StatusCode); ended {
		e.end(router.Outcome{Cause: cause, Err: &StatusError{Code: resp.StatusCode}})
		e.report(resp.Header) // of an engine that has no such request any more
		return resp, nil, again
	}
	e.lease.Started() // before the report, which has the request in its figures
	e.report(resp.Header)
	e.watch(out.Method, resp)
	return resp, nil, again
}

// target is the request's URL on the endpoint with that address.
func (c *call) target(address string) (*url.URL, error) {
	base, err := c.t.addresses.parse(address)
	if err != nil {
		return nil, err
	}
	return target(base, c.req.URL)
}

// upload passes a body on and remembers what went wrong with it: that is no fault of an endpoint.
type upload struct {
	io.ReadCloser
	under *upload // the caller's own, where a describer has put another body before it
	err   atomic.Pointer[error]
}

// Read reads the body.
func (u *upload) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		u.err.CompareAndSwap(nil, &err)
	}
	return n, err
}

// Close closes the body and what is under it.
func (u *upload) Close() error {
	err := u.ReadCloser.Close()
	u.under.close()
	return err
}

func (u *upload) close() {
	if u != nil {
		_ = u.Close()
	}
}

func (u *upload) failure() error {
	if u == nil {
		return nil
	}
	if p := u.err.Load(); p != nil {
		return *p
	}
	return nil
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// discard closes a response that nobody will see.
func discard(r *http.Response) {
	if r != nil && r.Body != nil {
		_ = r.Body.Close()
	}
}
