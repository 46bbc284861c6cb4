package gateway

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/isobar-go/isobar/router"
)

// DefaultReceipts is the size of a Ring of size 0.
const DefaultReceipts = 100

// maxOpen bounds the receipts of open requests that a Ring keeps. Beyond it they are kept when they have ended only.
const maxOpen = 1 << 14

// Ring is a router.Observer that keeps the newest receipts, of rejections and of granted requests that have ended, and beside
// them those of all that are open. Any number of goroutines may use it.
type Ring struct {
	mu    sync.Mutex
	buf   []*router.Receipt
	next  int                        // where the next one goes
	open  map[uint64]*router.Receipt // by number
	seeds uint64
}

// NewRing makes a ring for n receipts; 0 or less = DefaultReceipts.
func NewRing(n int) *Ring {
	if n <= 0 {
		n = DefaultReceipts
	}
	return &Ring{buf: make([]*router.Receipt, 0, n), open: map[uint64]*router.Receipt{}}
}

// Decided keeps a receipt: a rejection's as one of the newest, a granted request's as that of an open one.
func (r *Ring) Decided(receipt *router.Receipt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if receipt.Seed {
		r.seeds++
	}
	switch {
	case receipt.Rejected != "":
		r.keepLocked(receipt)
	case len(r.open) < maxOpen:
		r.open[receipt.Number] = receipt
	}
}

// Ended keeps the receipt of a granted request, which is open no more.
func (r *Ring) Ended(receipt *router.Receipt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, receipt.Number)
	r.keepLocked(receipt)
}

func (r *Ring) keepLocked(receipt *router.Receipt) {
	if len(r.buf) < cap(r.buf) {
		r.buf = append(r.buf, receipt)
		return
	}
	r.buf[r.next] = receipt
	r.next = (r.next + 1) % len(r.buf)
}

// Open returns the receipts of open requests, oldest first. They are shared: do not write to them.
func (r *Ring) Open() []*router.Receipt {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.SortedFunc(maps.Values(r.open), func(a, b *router.Receipt) int { return cmp.Compare(a.Number, b.Number) })
}

// Newest returns the receipts, newest first. They are shared: do not write to them.
func (r *Ring) Newest() []*router.Receipt {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*router.Receipt, 0, len(r.buf))
	for i := range len(r.buf) {
		out = append(out, r.buf[(r.next+len(r.buf)-1-i)%len(r.buf)])
	}
	return out
}

// Seeds is how many of the requests that it was told of were admitted as seeds.
func (r *Ring) Seeds() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seeds
}

// Observers tells several observers, in order. Any number of goroutines may use it as long as nobody changes it.
type Observers []router.Observer

// Decided tells them all.
func (o Observers) Decided(r *router.Receipt) {
	for _, each := range o {
		each.Decided(r)
	}
}

// Ended tells them all.
func (o Observers) Ended(r *router.Receipt) {
	for _, each := range o {
		each.Ended(r)
	}
}
