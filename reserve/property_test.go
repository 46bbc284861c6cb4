package reserve_test

import (
	"bytes"
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/reserve"
)

type pair struct {
	real  *reserve.Account
	model *modelAccount
}

type leasePair struct {
	real  *reserve.Lease
	model *modelLease
}

// machine drives a ledger and the naive twin with the same calls.
type machine struct {
	ledger   *reserve.Ledger
	cfg      reserve.Config
	now      int64
	accounts []*pair // every account ever returned
	leases   []leasePair
}

func newMachine(t *rapid.T) *machine {
	m := &machine{cfg: reserve.Config{
		VisibilityLag: time.Duration(rapid.SampledFrom([]int64{0, 1, 5, 20}).Draw(t, "lag")) * time.Millisecond,
		Horizon:       time.Duration(rapid.SampledFrom([]int64{15, 60_000}).Draw(t, "horizon")) * time.Millisecond,
		MaxEnded:      rapid.SampledFrom([]int{1, 3, 1000}).Draw(t, "maxEnded"),
	}}
	var err error
	m.ledger, err = reserve.NewLedger(m.cfg)
	require.NoError(t, err)
	m.open("a", "1")
	return m
}

func (m *machine) open(id, incarnation string) {
	a := m.ledger.Account(id, incarnation)
	for _, p := range m.accounts {
		if p.real == a {
			p.model.closed = false
			return
		}
	}
	m.accounts = append(m.accounts, &pair{a, &modelAccount{
		id: id, incarnation: incarnation, lag: m.cfg.VisibilityLag.Milliseconds(),
		horizon: m.cfg.Horizon.Milliseconds(), maxEnded: m.cfg.MaxEnded,
	}})
}

// at is near the present, sometimes in the past, sometimes the same as before.
func (m *machine) at(t *rapid.T) int64 {
	switch rapid.IntRange(0, 9).Draw(t, "clock") {
	case 0:
		return m.now - rapid.Int64Range(0, 30).Draw(t, "back")
	case 1:
		return m.now + rapid.Int64Range(0, 5).Draw(t, "ahead")
	default:
		m.now += rapid.Int64Range(0, 3).Draw(t, "step")
		return m.now
	}
}

func (m *machine) account(t *rapid.T) *pair { return rapid.SampledFrom(m.accounts).Draw(t, "account") }

// onLease does something to a lease, and nothing while there is none. An action that skipped itself would fail the run where
// the fuzzer's bytes choose it a hundred times in a row.
func (m *machine) onLease(do func(*rapid.T, leasePair)) func(*rapid.T) {
	return func(t *rapid.T) {
		if len(m.leases) > 0 {
			do(t, rapid.SampledFrom(m.leases).Draw(t, "lease"))
		}
	}
}

func (m *machine) reserve(t *rapid.T) {
	p, at := m.account(t), m.at(t)
	small := rapid.Int64Range(0, 5)
	c := reserve.Cost{Prefill: small.Draw(t, "prefill"), Decode: small.Draw(t, "decode"), KV: small.Draw(t, "kv")}
	l := new(reserve.Lease)
	if p.model.closed {
		require.ErrorIs(t, p.real.Reserve(l, ms(at), c), reserve.ErrClosed)
		require.False(t, l.Live())
		return
	}
	require.NoError(t, p.real.Reserve(l, ms(at), c))
	require.ErrorIs(t, p.real.Reserve(l, ms(at), c), reserve.ErrInUse)
	ml := &modelLease{account: p.model, dispatched: at, cost: c, left: c, live: true}
	p.model.leases = append(p.model.leases, ml)
	m.leases = append(m.leases, leasePair{l, ml})
}

func (m *machine) firstToken(t *rapid.T, l leasePair) {
	at := m.at(t)
	require.Equal(t, l.model.firstToken(at), l.real.FirstToken(ms(at)))
}

func (m *machine) progress(t *rapid.T, l leasePair) {
	at, n := m.at(t), rapid.Int64Range(-1, 7).Draw(t, "generated")
	require.Equal(t, l.model.progress(at, n), l.real.Progress(ms(at), n))
}

func (m *machine) release(t *rapid.T, l leasePair) {
	at := m.at(t)
	for range rapid.IntRange(1, 2).Draw(t, "times") {
		require.Equal(t, l.model.release(at), l.real.Release(ms(at)))
	}
}

func (m *machine) observe(t *rapid.T) {
	p, at := m.account(t), m.at(t)
	require.Equal(t, p.model.observe(at, nil), p.real.Observe(ms(at)))
}

func (m *machine) observeAnswer(t *rapid.T, l leasePair) {
	p, at := m.account(t), m.at(t)
	if rapid.Bool().Draw(t, "own account") {
		p = m.accounts[slices.IndexFunc(m.accounts, func(p *pair) bool { return p.model == l.model.account })]
	}
	require.Equal(t, p.model.observe(at, l.model), p.real.ObserveAnswer(ms(at), l.real))
}

func (m *machine) restart(t *rapid.T) {
	p, at := m.account(t), m.at(t)
	p.model.restart(at)
	p.real.Restart(ms(at))
}

func (m *machine) close(t *rapid.T) {
	p := m.account(t)
	m.ledger.Close(p.real)
	p.model.closed = true
}

func (m *machine) reopen(t *rapid.T) {
	m.open(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "id"), rapid.SampledFrom([]string{"1", "2"}).Draw(t, "incarnation"))
}

func (m *machine) check(t *rapid.T) {
	known := map[[2]string]*pair{}
	var live []*modelLease
	for _, p := range m.accounts {
		require.Equal(t, p.model.sums(), p.real.Sums())
		require.Equal(t, p.model.starting(), p.real.Starting())
		require.NoError(t, p.real.Check())
		require.Equal(t, p.model.forgotten, p.real.Forgotten())
		at, ok := p.real.ObservedAt()
		require.Equal(t, p.model.observed != nil, ok)
		if ok {
			require.True(t, at.Equal(ms(*p.model.observed)))
		}
		if !p.model.closed || p.model.busy() {
			k := [2]string{p.model.id, p.model.incarnation}
			require.Nil(t, known[k], "two accounts for %v", k)
			known[k] = p
		}
		for _, l := range p.model.leases {
			if l.live {
				live = append(live, l)
			}
		}
	}
	require.Equal(t, len(known), m.ledger.Accounts())
	for _, l := range m.leases {
		require.Equal(t, l.model.live, l.real.Live())
		require.Equal(t, l.model.cost, l.real.Cost())
		left := l.model.left
		if !l.model.live {
			left = reserve.Cost{}
		}
		require.Equal(t, left, l.real.Remaining())
	}
	slices.SortStableFunc(live, func(x, y *modelLease) int { return cmp.Compare(x.dispatched, y.dispatched) })
	got := m.ledger.Oldest(3)
	require.Len(t, got, min(3, len(live)))
	for i, l := range got {
		require.True(t, l.DispatchedAt.Equal(ms(live[i].dispatched)))
	}
}

func ledgerProperty(t *rapid.T) {
	m := newMachine(t)
	t.Repeat(map[string]func(*rapid.T){
		"":            m.check,
		"reserve":     m.reserve,
		"reserve2":    m.reserve,
		"first token": m.onLease(m.firstToken),
		"progress":    m.onLease(m.progress),
		"release":     m.onLease(m.release),
		"release2":    m.onLease(m.release),
		"observe":     m.observe,
		"answer":      m.onLease(m.observeAnswer),
		"restart":     m.restart,
		"close":       m.close,
		"reopen":      m.reopen,
	})
}

func TestLedgerAgainstModel(t *testing.T) { rapid.Check(t, ledgerProperty) }

// FuzzLedger makes one draw of each byte, so that short inputs are long runs: long ones take the fuzzer very long to minimise.
func FuzzLedger(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 5 {
		seed := make([]byte, 64)
		for i := range seed {
			seed[i] = byte(rng.Uint32())
		}
		f.Add(seed)
	}
	for b := range 256 {
		f.Add(bytes.Repeat([]byte{byte(b)}, 400)) // the same action again and again
	}
	run := rapid.MakeFuzz(ledgerProperty)
	f.Fuzz(func(t *testing.T, draws []byte) {
		var words []byte
		for _, b := range draws {
			words = append(words, b, b, b, b, b, b, b, b)
		}
		run(t, words)
	})
}

// An observation may arrive at any place among the events: only the newest observation time matters.
func TestOrderOfObservationsDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type step struct {
			at int64
			do func(a *reserve.Account, leases []reserve.Lease)
		}
		cfg := reserve.Config{VisibilityLag: time.Duration(rapid.Int64Range(0, 5).Draw(t, "lag")) * time.Millisecond}
		n := rapid.IntRange(1, 12).Draw(t, "leases")
		var steps, observations []step
		for i := range n {
			at := rapid.Int64Range(0, 40).Draw(t, "dispatched")
			c := reserve.Cost{Prefill: int64(i + 1), Decode: 10, KV: 100}
			steps = append(steps, step{at, func(a *reserve.Account, ls []reserve.Lease) { _ = a.Reserve(&ls[i], ms(at), c) }})
			first := at + rapid.Int64Range(0, 20).Draw(t, "first")
			steps = append(steps, step{first, func(_ *reserve.Account, ls []reserve.Lease) { ls[i].FirstToken(ms(first)) }})
			half := first + rapid.Int64Range(0, 20).Draw(t, "half")
			steps = append(steps, step{half, func(_ *reserve.Account, ls []reserve.Lease) { ls[i].Progress(ms(half), 5) }})
			if rapid.Bool().Draw(t, "ends") {
				end := half + rapid.Int64Range(0, 20).Draw(t, "end")
				steps = append(steps, step{end, func(_ *reserve.Account, ls []reserve.Lease) { ls[i].Release(ms(end)) }})
			}
		}
		for range rapid.IntRange(1, 5).Draw(t, "observations") {
			at := rapid.Int64Range(0, 100).Draw(t, "observed")
			observations = append(observations, step{at, func(a *reserve.Account, _ []reserve.Lease) { a.Observe(ms(at)) }})
		}
		byTime := func(x, y step) int { return cmp.Compare(x.at, y.at) }
		slices.SortStableFunc(steps, byTime)
		run := func(steps []step) reserve.Sums {
			ledger, err := reserve.NewLedger(cfg)
			require.NoError(t, err)
			a, leases := ledger.Account("a", ""), make([]reserve.Lease, n)
			for _, s := range steps {
				s.do(a, leases)
			}
			require.NoError(t, a.Check())
			return a.Sums()
		}
		inOrder := append(slices.Clone(observations), steps...)
		slices.SortStableFunc(inOrder, byTime)
		mixed := slices.Clone(steps)
		for _, o := range observations {
			mixed = slices.Insert(mixed, rapid.IntRange(0, len(mixed)).Draw(t, "place"), o)
		}
		require.Equal(t, run(inOrder), run(mixed))
	})
}

// A simulated engine that reports exactly what it holds: own leases and foreign load. Whatever snapshots arrive, late
// or not at all, the reconciled load is the true one, the foreign part as last reported.
func TestPerfectTelemetryGivesTheTrueLoad(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ledger, err := reserve.NewLedger(reserve.Config{})
		require.NoError(t, err)
		a := ledger.Account("a", "")
		type request struct {
			lease   reserve.Lease
			prefill int64
			decode  int64
			kv      int64
			output  int64
		}
		type poll struct {
			at             int64
			report, extern reserve.Load
		}
		var (
			now              int64
			running          []*request
			polls            []poll
			foreign          reserve.Load // of the engine
			report, foreign0 reserve.Load // of the newest snapshot
			newest           int64        = -1
		)
		own := func() (s reserve.Load) {
			for _, r := range running {
				s = plus(s, reserve.Load{Requests: 1, Prefill: r.prefill, Decode: r.decode, KV: r.kv})
			}
			return s
		}
		pick := func(t *rapid.T) *request {
			if len(running) == 0 {
				t.Skip("idle")
			}
			return rapid.SampledFrom(running).Draw(t, "request")
		}
		amount := rapid.Int64Range(0, 9)
		t.Repeat(map[string]func(*rapid.T){
			"dispatch": func(t *rapid.T) {
				now++
				r := &request{prefill: amount.Draw(t, "prefill"), decode: amount.Draw(t, "decode"), kv: amount.Draw(t, "kv")}
				require.NoError(t, a.Reserve(&r.lease, ms(now), reserve.Cost{Prefill: r.prefill, Decode: r.decode, KV: r.kv}))
				running = append(running, r)
			},
			"first token": func(t *rapid.T) {
				now++
				r := pick(t)
				r.prefill = 0
				r.lease.FirstToken(ms(now))
			},
			"token": func(t *rapid.T) {
				now++
				r := pick(t)
				r.prefill, r.decode = 0, max(0, r.decode-1)
				r.output++
				r.lease.Progress(ms(now), r.output)
			},
			"end": func(t *rapid.T) {
				now++
				r := pick(t)
				running = slices.DeleteFunc(running, func(o *request) bool { return o == r })
				require.True(t, r.lease.Release(ms(now)))
			},
			"poll": func(t *rapid.T) {
				now++
				foreign = reserve.Load{Requests: amount.Draw(t, "r"), Prefill: amount.Draw(t, "p"), Decode: amount.Draw(t, "d"), KV: amount.Draw(t, "k")}
				polls = append(polls, poll{now, plus(own(), foreign), foreign})
			},
			"arrival": func(t *rapid.T) {
				if len(polls) == 0 {
					t.Skip("none under way")
				}
				i := rapid.IntRange(0, len(polls)-1).Draw(t, "poll")
				p := polls[i]
				polls = slices.Delete(polls, i, i+1)
				require.Equal(t, p.at > newest, a.Observe(ms(p.at)))
				if p.at > newest {
					newest, report, foreign0 = p.at, p.report, p.extern
				}
			},
			"": func(t *rapid.T) {
				s := a.Sums()
				require.Equal(t, own(), s.Live)
				if newest < 0 {
					require.Equal(t, s.Live, s.Unobserved)
					return
				}
				r := plus(minus(report, s.Departed), s.Unobserved)
				r.Requests, r.Prefill = max(r.Requests, s.Live.Requests), max(r.Prefill, s.Live.Prefill)
				r.Decode, r.KV = max(r.Decode, s.Live.Decode), max(r.KV, s.Live.KV)
				require.Equal(t, plus(own(), foreign0), r)
			},
		})
	})
}
