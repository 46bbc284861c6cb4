package gateway

import (
	"bytes"
	"context"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/isobar-go/isobar/router/httptransport"
)

func isEvents(h http.Header) bool {
	media, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	return media == "text/event-stream" && h.Get("Content-Encoding") == ""
}

// errorEvents ends a stream that breaks with an event that says so: the status has been sent long since, and a client
// would otherwise see no more than a lost connection. It is read by one goroutine.
type errorEvents struct {
	io.ReadCloser
	ctx    context.Context
	tail   [2]byte // the newest bytes
	rest   []byte  // of the error event
	broken bool
}

// Read passes the stream on.
func (e *errorEvents) Read(p []byte) (int, error) {
	if e.broken {
		return e.tell(p)
	}
	n, err := e.ReadCloser.Read(p)
	switch {
	case n > 1:
		e.tail = [2]byte(p[n-2 : n])
	case n == 1:
		e.tail = [2]byte{e.tail[1], p[0]}
	}
	if err == nil || err == io.EOF || e.ctx.Err() != nil {
		return n, err
	}
	e.broken = true
	_, body := httptransport.ErrorBody(&httptransport.StreamError{})
	if e.tail != [2]byte{} && e.tail != [2]byte{'\n', '\n'} {
		e.rest = append(e.rest, "\n\n"...) // what has come of the event is lost
	}
	e.rest = append(append(append(e.rest, "data: "...), bytes.TrimSpace(body)...), "\n\n"...)
	if n > 0 {
		return n, nil
	}
	return e.tell(p)
}

func (e *errorEvents) tell(p []byte) (int, error) {
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	if len(e.rest) == 0 {
		return n, io.EOF
	}
	return n, nil
}

// bounded bounds what a client can cost: the size of its body, the time until it is here, and the time an answer may lie
// untaken.
func (g *Gateway) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		// The calls fail only on a connection that is lost, or of a server that has none, as in a test.
		if r.ContentLength != 0 {
			_ = control.SetReadDeadline(time.Now().Add(g.cfg.BodyTimeout)) // net/http takes it back at the end of the body
		}
		_ = control.SetWriteDeadline(time.Time{}) // that of the request before
		r = r.WithContext(context.WithValue(r.Context(), modelKey{}, new(string)))
		r.Body = http.MaxBytesReader(w, r.Body, g.cfg.MaxBody)
		taken := &timedWriter{ResponseWriter: w, control: control, limit: g.cfg.StallTimeout, id: r.Header.Get(HeaderRequestID)}
		defer taken.extend() // what is buffered still is sent after the handler
		next.ServeHTTP(taken, r)
	})
}

// timedWriter moves the write deadline on with every part of the answer.
type timedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration
	last    time.Time
	id      string // of the request
}

// extend grants the time from now, or a quarter less: it is not set anew for every small part.
func (w *timedWriter) extend() {
	if now := time.Now(); now.Sub(w.last) > w.limit/4 {
		w.last = now
		_ = w.control.SetWriteDeadline(now.Add(w.limit))
	}
}

// WriteHeader sends the status. The id is set here: the proxy empties the headers after an engine's 1xx.
func (w *timedWriter) WriteHeader(status int) {
	w.Header().Set(HeaderRequestID, w.id)
	w.extend()
	w.ResponseWriter.WriteHeader(status)
}

// Write sends a part of the answer.
func (w *timedWriter) Write(p []byte) (int, error) {
	w.extend()
	return w.ResponseWriter.Write(p)
}

// FlushError sends what is buffered.
func (w *timedWriter) FlushError() error {
	w.extend()
	return w.control.Flush()
}

// Unwrap is for http.ResponseController.
func (w *timedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
