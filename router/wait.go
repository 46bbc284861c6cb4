package router

import (
	"context"
	"fmt"
	"time"
)

// errCancelled is the result of a ticket that was cancelled.
func errCancelled() error {
	return fmt.Errorf("router: the ticket was cancelled: %w", context.Canceled)
}

// wait waits for the ticket's result, no longer than ctx.
func (t *Ticket) wait(ctx context.Context) (*Lease, error) {
	waits := true
	defer func() {
		if waits { // the host's timer or clock has panicked: nobody will fetch the lease
			t.Cancel()
		}
	}()
	l, err := t.await(ctx)
	waits = false
	return l, err
}

func (t *Ticket) await(ctx context.Context) (*Lease, error) {
	var gone <-chan struct{}
	if ctx != nil {
		gone = ctx.Done()
	}
	newTimer := t.pool.cfg.Queue.Timer
	if newTimer == nil {
		newTimer = time.NewTimer
	}
	for {
		timer := newTimer(t.sleep())
		select {
		case <-t.done:
			timer.Stop()
			if err := t.abandoned(ctx); err != nil {
				return nil, err
			}
			return t.lease, t.err
		case <-gone:
			timer.Stop()
			if !t.quit() {
				<-t.done // the observer has been told of the lease that is given back
				if t.lease != nil {
					t.lease.Cancel()
				}
			}
			return nil, ctx.Err()
		case <-t.wake:
			timer.Stop()
		case <-timer.C:
			t.pool.Tick()
		}
	}
}

// abandoned passes a lease on that was granted to a caller who has gone meanwhile.
func (t *Ticket) abandoned(ctx context.Context) error {
	if ctx == nil || ctx.Err() == nil || t.lease == nil {
		return nil
	}
	t.lease.Cancel()
	return ctx.Err()
}

// sleep is how long nothing has to be done for the ticket, or if it keeps the time for all, for anybody.
func (t *Ticket) sleep() time.Duration {
	p := t.pool
	q := p.queue
	_, now := p.now()
	q.mu.Lock()
	defer q.mu.Unlock()
	at := q.next()
	if q.keeper == t {
		q.minded = at
	} else if !t.ended {
		at = min(t.since, never-int64(q.cfg.Timeout)) + int64(q.cfg.Timeout)
		if latest := t.place.Ask().Latest; latest != 0 {
			at = min(at, latest+1)
		}
	}
	return min(max(time.Duration(at-now), 0), time.Hour)
}
