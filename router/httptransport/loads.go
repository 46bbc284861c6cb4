package httptransport

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/engine"
)

// Loads is told what endpoints report about their load with their responses. Its method is called from many goroutines at
// once, while a caller waits for the response: it must not block. *router.Pool is one.
type Loads interface {
	// ObserveAnswer takes a snapshot that came with the answer to the request of l, which may have ended.
	ObserveAnswer(l *router.Lease, s telemetry.Snapshot) error
}

// report delivers the load report among headers or trailers that have just arrived, if there is one, and takes it out if the
// transport has asked for it. Its figures are those of the moment in which the engine wrote them, and count as of now.
func (e *ending) report(from http.Header) {
	values := from[engine.LoadHeader]
	if e.asked {
		delete(from, engine.LoadHeader)
	}
	if e.loads == nil || len(values) == 0 || values[0] == "" {
		return
	}
	now := e.now
	if now == nil {
		now = time.Now
	}
	snapshot, err := engine.ParseLoadHeader(values[0], now())
	if err == nil {
		err = e.loads.ObserveAnswer(e.lease, snapshot)
	}
	if err == nil || e.log == nil || !e.log.Enabled(e.ctx, slog.LevelDebug) {
		return
	}
	e.log.LogAttrs(e.ctx, slog.LevelDebug, "load report not used", slog.String("request_id", shortID(e.request)),
		slog.String("endpoint", e.lease.Endpoint().ID), slog.Int("attempt", e.attempt), slog.Any("error", err))
}
