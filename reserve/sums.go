package reserve

import (
	"math"
	"sync/atomic"
)

// The three sums that an account keeps. Live is the total of the first two.
const (
	contained  = iota // live leases dispatched before T-d
	unobserved        // the other live leases
	departed          // remembered events of leases dispatched before T-d
	sumCount
)

// published is the copy of an account's sums that readers take without the lock: a sequence lock whose words are all
// atomic, in one cache line. One writer at a time (under the account's mutex); any number of readers.
type published struct {
	seq      atomic.Uint64 // odd while several words are being written; changes with every write
	sums     [sumCount]packed
	starting atomic.Int64 // live leases without their first token; beside the lock
}

type packed struct{ requestsKV, tokens atomic.Uint64 }

// An atomic store costs several times everything else that a write does, so figures that change together share a word:
// requests with KV, prefill with decode. Figures too large for their share are published as tooLarge, which sends
// readers to the mutex.
const (
	requestBits = 20
	kvBits      = 44 // 1.7e13 tokens
	tokenBits   = 31 // 2.1e9 tokens
	tooLarge    = math.MaxUint64
)

func packRequestsKV(l *Load) uint64 {
	if uint64(l.Requests)>>requestBits|uint64(l.KV)>>kvBits != 0 {
		return tooLarge
	}
	return uint64(l.Requests)<<kvBits | uint64(l.KV) // the largest value of both is tooLarge as well: correct, if slow
}

func packTokens(l *Load) uint64 {
	if (uint64(l.Prefill)|uint64(l.Decode))>>tokenBits != 0 {
		return tooLarge
	}
	return uint64(l.Prefill)<<32 | uint64(l.Decode)
}

func unpack(requestsKV, tokens uint64) Load {
	return Load{
		Requests: int64(requestsKV >> kvBits),
		Prefill:  int64(tokens >> 32),
		Decode:   int64(tokens & math.MaxUint32),
		KV:       int64(requestsKV & (1<<kvBits - 1)),
	}
}

// storeOne publishes one sum. Only words that changed are stored, and a single one needs no odd sequence: whoever reads
// it sees the state before or the state after, and whoever reads a word of the next write sees the sequence moved.
func (p *published) storeOne(i int, l *Load) {
	w := &p.sums[i]
	requestsKV, tokens := packRequestsKV(l), packTokens(l)
	seq := p.seq.Load()
	switch first, second := w.requestsKV.Load() != requestsKV || requestsKV == tooLarge, w.tokens.Load() != tokens || tokens == tooLarge; {
	case first && second:
		p.seq.Store(seq + 1)
		w.requestsKV.Store(requestsKV)
		w.tokens.Store(tokens)
	case first:
		w.requestsKV.Store(requestsKV)
	case second:
		w.tokens.Store(tokens)
	default:
		return
	}
	p.seq.Store(seq + 2)
}

// storeAll publishes all sums.
func (p *published) storeAll(sums *[sumCount]Load) {
	seq := p.seq.Load()
	p.seq.Store(seq + 1)
	for i := range sums {
		w := &p.sums[i]
		if v := packRequestsKV(&sums[i]); v != w.requestsKV.Load() {
			w.requestsKV.Store(v)
		}
		if v := packTokens(&sums[i]); v != w.tokens.Load() {
			w.tokens.Store(v)
		}
	}
	p.seq.Store(seq + 2)
}

// maxSpins bounds the tries of a reader; a writer that was preempted in the middle may take long.
const maxSpins = 64

// load returns false when the mutex has to be taken.
func (p *published) load(s *Sums) bool {
	for range maxSpins {
		seq := p.seq.Load()
		if seq&1 != 0 {
			continue
		}
		c, u, d := &p.sums[contained], &p.sums[unobserved], &p.sums[departed]
		c0, c1 := c.requestsKV.Load(), c.tokens.Load()
		u0, u1 := u.requestsKV.Load(), u.tokens.Load()
		d0, d1 := d.requestsKV.Load(), d.tokens.Load()
		if p.seq.Load() != seq {
			continue
		}
		if max(c0, c1, u0, u1, d0, d1) == tooLarge {
			return false
		}
		live := unpack(c0, c1)
		s.Unobserved = unpack(u0, u1)
		s.Departed = unpack(d0, d1)
		s.Live = Load{
			live.Requests + s.Unobserved.Requests, live.Prefill + s.Unobserved.Prefill,
			live.Decode + s.Unobserved.Decode, live.KV + s.Unobserved.KV,
		}
		return true
	}
	return false
}

// Version returns a number that grows with every change of what [Account.Sums] tells, so that a reader can keep what it
// computed from them; it is odd while several figures are being changed. Read Version before Sums: as long as it then
// returns the same even number, no later change has been completed. It takes no lock.
func (a *Account) Version() uint64 { return a.pub.seq.Load() }

// Sums returns a consistent reading of the account. It takes no lock unless writers keep interfering or a sum exceeds
// 2^31 prefill or decode tokens, 2^44 KV tokens or 2^20 requests; it allocates nothing and costs some 10 ns. All zero
// for an account without leases and remembered events.
func (a *Account) Sums() (s Sums) {
	if !a.pub.load(&s) {
		a.mu.Lock()
		s = a.sumsLocked()
		a.mu.Unlock()
	}
	return s
}

// Starting returns how many live leases have not got their first token. It takes no lock, and may be newer or older than what
// [Account.Sums] tells beside it.
func (a *Account) Starting() int64 { return a.pub.starting.Load() }

func (a *Account) sumsLocked() Sums {
	s := Sums{Live: a.sums[contained], Unobserved: a.sums[unobserved], Departed: a.sums[departed]}
	s.Live.add(&s.Unobserved)
	return s
}

// addLocked and subLocked change sum i; readers see it after the next publishLocked.
func (a *Account) addLocked(i int, l *Load) {
	a.sums[i].add(l)
	a.dirty |= 1 << i
}

func (a *Account) subLocked(i int, l *Load) {
	a.sums[i].sub(l)
	a.dirty |= 1 << i
}

// publishLocked shows readers what changed since the last call, all at once.
func (a *Account) publishLocked() {
	switch a.dirty {
	case 0:
	case 1 << contained:
		a.pub.storeOne(contained, &a.sums[contained])
	case 1 << unobserved:
		a.pub.storeOne(unobserved, &a.sums[unobserved])
	case 1 << departed:
		a.pub.storeOne(departed, &a.sums[departed])
	default:
		a.pub.storeAll(&a.sums)
	}
	a.dirty = 0
}
