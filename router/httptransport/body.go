package httptransport

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/isobar-go/isobar/router"
)

// ending ends a lease once.
type ending struct {
	pool  router.Router
	lease *router.Lease
	ctx   context.Context // of the caller's request
	ended atomic.Bool

	log     *slog.Logger // nil = nowhere
	request string       // its id
	attempt int          // from 1

	loads Loads // nil = nobody
	asked bool  // for load reports, by the transport
	now   func() time.Time
}

func (e *ending) end(out router.Outcome) {
	if !e.ended.CompareAndSwap(false, true) {
		return
	}
	e.pool.Release(e.lease, out)
	switch out.Cause {
	case router.Failed:
		e.note(slog.LevelWarn, out.Err)
	case router.Refused:
		e.note(slog.LevelInfo, out.Err)
	}
}

// note logs a failed attempt.
func (e *ending) note(level slog.Level, err error) {
	if e.log == nil || !e.log.Enabled(e.ctx, level) {
		return
	}
	e.log.LogAttrs(e.ctx, level, "attempt failed", slog.String("request_id", shortID(e.request)),
		slog.String("endpoint", e.lease.Endpoint().ID), slog.Int("attempt", e.attempt), slog.Any("error", err))
}

// broken ends the lease of a connection that broke: by the caller's own doing if the context has ended.
func (e *ending) broken(err error) {
	if e.ctx.Err() != nil {
		e.end(router.Outcome{Cause: router.Cancelled})
		return
	}
	e.end(router.Outcome{Cause: router.Failed, Err: err})
}

// watch makes the response's body end the lease, or ends it at once where none will come.
func (e *ending) watch(method string, resp *http.Response) {
	switch {
	case resp.StatusCode == http.StatusSwitchingProtocols:
		if rwc, ok := resp.Body.(io.ReadWriteCloser); ok {
			resp.Body = &connection{ReadWriteCloser: rwc, ending: e}
			return
		}
	case resp.Body == nil || resp.Body == http.NoBody || method == http.MethodHead || resp.ContentLength == 0 ||
		resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotModified:
		e.end(router.Outcome{})
		return
	}
	b := &body{rc: resp.Body, ending: e, resp: resp, left: resp.ContentLength, metered: resp.StatusCode < 300}
	b.meter.kind = kindOf(resp.Header)
	resp.Body = b
}

// body is a response body that ends its lease. Read is for one goroutine at a time; Close may come from another.
type body struct {
	*ending
	rc      io.ReadCloser
	resp    *http.Response // has the trailers, once the end of rc was read
	metered bool           // an error's or a redirect's bytes are no tokens

	mu    sync.Mutex // guards what follows; not held while reading
	meter meter
	left  int64 // bytes until the end by Content-Length; negative = unknown
}

// Read passes bytes on as they come.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.rc.Read(p)
	if b.ended.Load() {
		return n, err
	}
	if n > 0 {
		b.note(p[:n])
	}
	switch {
	case err == io.EOF || err != nil && b.over(): // a client may leave between the last event and the end
		b.done()
		if err == io.EOF {
			b.report(b.resp.Trailer) // the engine is done with the request, and so is the ledger
		}
	case err != nil:
		b.broken(err)
	}
	return n, err
}

func (b *body) note(p []byte) {
	b.mu.Lock()
	if b.left > 0 {
		b.left -= int64(len(p))
	}
	if !b.metered {
		b.mu.Unlock()
		return
	}
	first := b.meter.first
	b.meter.feed(p)
	first = b.meter.first && !first
	tokens := b.meter.progress()
	b.mu.Unlock()
	if first {
		b.lease.FirstToken()
	}
	if tokens > 0 {
		b.lease.Progress(tokens)
	}
}

// done ends the lease of a body that is over.
func (b *body) done() {
	b.mu.Lock()
	b.meter.finish()
	out := router.Outcome{Usage: b.meter.usage}
	if b.meter.fault != nil {
		out.Cause, out.Err = router.Failed, b.meter.fault
	}
	b.mu.Unlock()
	b.end(out)
}

// over says that nothing of use is missing, though the end has not been told.
func (b *body) over() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left == 0 || b.meter.complete() || b.meter.fault != nil
}

// Close ends the lease, if the end of the body has not.
func (b *body) Close() error {
	switch {
	case b.ended.Load():
	case b.over():
		b.done()
	default:
		b.end(router.Outcome{Cause: router.Cancelled})
	}
	return b.rc.Close()
}

// connection is the body after 101 Switching Protocols: it goes both ways, and closing it ends the lease. Reading,
// writing and closing may each be done by a goroutine of its own.
type connection struct {
	*ending
	io.ReadWriteCloser
}

// Read reads what the endpoint sends. Its end is not yet that of the connection.
func (c *connection) Read(p []byte) (int, error) {
	n, err := c.ReadWriteCloser.Read(p)
	if n > 0 && !c.ended.Load() {
		c.lease.FirstToken()
	}
	if err != nil && err != io.EOF {
		c.broken(err)
	}
	return n, err
}

// Write sends to the endpoint.
func (c *connection) Write(p []byte) (int, error) {
	n, err := c.ReadWriteCloser.Write(p)
	if err != nil {
		c.broken(err)
	}
	return n, err
}

// CloseWrite ends the sending half, where the connection can.
func (c *connection) CloseWrite() error {
	if half, ok := c.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fmt.Errorf("httptransport: CloseWrite: %w", http.ErrNotSupported)
}

// Close ends the lease. After a switch of protocols nobody can know which side was done, and a proxy closes its connections
// after the request's context has ended, so that this always counts as completed.
func (c *connection) Close() error {
	c.end(router.Outcome{})
	return c.ReadWriteCloser.Close()
}
