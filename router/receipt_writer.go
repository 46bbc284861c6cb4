package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
)

// errSkipped says that one receipt could not be written and the next may be.
var errSkipped = errors.New("router: receipt skipped")

// receiptBuffer is the capacity of a writer's buffer where none is given, receipts.
const receiptBuffer = 1024

// backlog is a bounded buffer between decisions, which must not wait, and a writer, which may be slow.
type backlog struct {
	queue   chan *Receipt
	dropped atomic.Uint64
	written atomic.Uint64
}

func newBacklog(buffer int) backlog {
	if buffer <= 0 {
		buffer = receiptBuffer
	}
	return backlog{queue: make(chan *Receipt, buffer)}
}

func (b *backlog) decided(r *Receipt, open bool) {
	if r.Rejected != "" || open {
		b.put(r)
	}
}

// Ended keeps the receipt with its outcome.
func (b *backlog) Ended(r *Receipt) { b.put(r) }

func (b *backlog) put(r *Receipt) {
	select {
	case b.queue <- r:
	default:
		b.dropped.Add(1)
	}
}

// Dropped is the number of receipts that found the buffer full.
func (b *backlog) Dropped() uint64 { return b.dropped.Load() }

// Written is the number of receipts written.
func (b *backlog) Written() uint64 { return b.written.Load() }

// drain writes receipts until ctx is done, and then those that are in the buffer.
func (b *backlog) drain(ctx context.Context, write func(*Receipt) error) error {
	one := func(r *Receipt) error {
		if err := write(r); err != nil {
			b.dropped.Add(1)
			if errors.Is(err, errSkipped) {
				return nil
			}
			return err
		}
		b.written.Add(1)
		return nil
	}
	for {
		select {
		case r := <-b.queue:
			if err := one(r); err != nil {
				return err
			}
		case <-ctx.Done():
			for {
				select {
				case r := <-b.queue:
					if err := one(r); err != nil {
						return err
					}
				default:
					return nil
				}
			}
		}
	}
}

// JSONLines is an [Observer] that writes receipts as JSON, one a line: rejections at once, leases when they end, joined
// with their outcome. Decisions never wait for it: what finds the buffer full is dropped and counted. The host runs
// [JSONLines.Run]; the other methods may be called from any goroutine.
type JSONLines struct {
	// Open says that the receipt of a granted lease is written at the decision too, without an outcome, so that a request that
	// never ends can be asked about. Set it before the pool is made.
	Open bool

	backlog
	w io.Writer
}

// NewJSONLines makes a writer with room for that many receipts that are not written yet; 0 or less = 1024.
func NewJSONLines(w io.Writer, buffer int) *JSONLines {
	return &JSONLines{backlog: newBacklog(buffer), w: w}
}

// Decided takes the receipt of a rejection, and with Open that of a granted lease too, which else is taken when it ends.
func (j *JSONLines) Decided(r *Receipt) { j.decided(r, j.Open) }

// Run writes until ctx is done, and then what is in the buffer; it returns nil, or the first error of the writer, after
// which receipts are dropped.
func (j *JSONLines) Run(ctx context.Context) error {
	enc := json.NewEncoder(j.w)
	enc.SetEscapeHTML(false)
	if j.w == nil {
		return errors.New("router: JSONLines has no writer")
	}
	return j.drain(ctx, func(r *Receipt) error {
		err := enc.Encode(r)
		var unsupported *json.UnsupportedValueError
		if errors.As(err, &unsupported) { // no fault of the writer
			return errSkipped
		}
		if err != nil {
			return fmt.Errorf("router: writing a receipt: %w", err)
		}
		return nil
	})
}

// SlogObserver is an [Observer] that logs receipts in short, at level Debug, and rejections at level Info. The host runs
// [SlogObserver.Run]; the other methods may be called from any goroutine.
type SlogObserver struct {
	// Open says that the receipt of a granted lease is written at the decision too, without an outcome, so that a request that
	// never ends can be asked about. Set it before the pool is made.
	Open bool

	backlog
	log *slog.Logger
}

// NewSlogObserver makes an observer with room for that many receipts that are not logged yet; 0 or less = 1024. A nil
// logger is slog's default.
func NewSlogObserver(log *slog.Logger, buffer int) *SlogObserver {
	if log == nil {
		log = slog.Default()
	}
	return &SlogObserver{backlog: newBacklog(buffer), log: log}
}

// Decided takes the receipt of a rejection, and with Open that of a granted lease too, which else is taken when it ends.
func (s *SlogObserver) Decided(r *Receipt) { s.decided(r, s.Open) }

// Run logs until ctx is done, and then what is in the buffer. It returns nil.
func (s *SlogObserver) Run(ctx context.Context) error {
	return s.drain(ctx, func(r *Receipt) error {
		level, attrs := slog.LevelDebug, r.attrs()
		if r.Rejected != "" {
			level = slog.LevelInfo
		}
		s.log.LogAttrs(context.WithoutCancel(ctx), level, "isobar decision", attrs...)
		return nil
	})
}

func (r *Receipt) attrs() []slog.Attr {
	attrs := []slog.Attr{
		slog.String("request_id", r.RequestID), slog.Uint64("number", r.Number), slog.String("policy", r.Policy),
		slog.String("class", r.Class.String()),
		slog.Int64("size_bucket", r.SizeBucket), slog.Int("considered", r.Considered), slog.Int("excluded", r.Excluded),
	}
	if r.Rejected != "" {
		return append(attrs, slog.String("rejected", r.Rejected))
	}
	attrs = append(attrs, slog.String("endpoint", r.Endpoint), slog.Float64("total_ms", r.Terms.Total()),
		slog.Float64("start_ms", r.Terms.Start()), slog.Int64("cached", r.Cached), slog.String("runner_up", r.RunnerUp),
		slog.Float64("runner_up_ms", r.RunnerUpTotal), slog.Bool("degraded", r.Degraded))
	if r.Withheld != NoReason {
		attrs = append(attrs, slog.String("withheld", r.Withheld.String()))
	}
	if o := r.Outcome; o != nil {
		attrs = append(attrs, slog.String("cause", o.Cause.String()), slog.Float64("first_token_ms", o.FirstTokenMS),
			slog.Float64("completion_ms", o.CompletionMS), slog.Int64("tokens", o.Tokens))
		if o.ErrorType != "" {
			attrs = append(attrs, slog.String("error_type", o.ErrorType))
		}
	}
	return attrs
}
