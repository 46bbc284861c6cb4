package router

import (
	"sync"
	"sync/atomic"
	"time"
)

// overload is the mark of an endpoint that refused a request: it is avoided for a second, doubled by each further refusal up to
// eight. It decays by itself. Reading it takes no lock.
type overload struct {
	until atomic.Int64 // ns on the pool's scale up to which the endpoint is avoided; 0 = not marked

	mu  sync.Mutex
	at  int64 // when it was marked
	row int   // refusals in a row
}

// mark takes a refusal of a lease that was granted at that time. One granted before the last mark tells nothing new.
func (o *overload) mark(now, granted int64) {
	const first, doublings = int64(time.Second), 3
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.row > 0 && granted < o.at {
		return
	}
	o.until.Store(max(now+first<<min(o.row, doublings), 1))
	o.at = now
	o.row++
}

// clear takes a completion: of a lease that was granted after the mark it shows that the endpoint takes requests again.
func (o *overload) clear(granted int64) {
	if o.until.Load() == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if granted >= o.at {
		o.row = 0
		o.until.Store(0)
	}
}
