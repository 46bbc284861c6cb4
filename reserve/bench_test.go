package reserve

import (
	"strconv"
	"sync/atomic"
	"testing"
	"time"
)

var benchCost = Cost{Prefill: 1000, Decode: 200, KV: 1200}

func benchAccount(b *testing.B, cfg Config) *Account {
	b.Helper()
	l, err := NewLedger(cfg)
	if err != nil {
		b.Fatal(err)
	}
	return l.Account("e", "1")
}

// One request's life, an observation for every 100 requests.
func BenchmarkLifecycle(b *testing.B) {
	for _, lag := range []time.Duration{0, 100 * time.Millisecond} {
		b.Run("lag="+lag.String(), func(b *testing.B) {
			a := benchAccount(b, Config{VisibilityLag: lag})
			now := time.Now()
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				var l Lease
				now = now.Add(time.Millisecond)
				if err := a.Reserve(&l, now, benchCost); err != nil {
					b.Fatal(err)
				}
				l.FirstToken(now)
				l.Release(now)
				if n++; n%100 == 0 {
					a.Observe(now)
				}
			}
		})
	}
}

// No observation ever: the logs are full and forget the oldest each time.
func BenchmarkLifecycleUnobserved(b *testing.B) {
	a := benchAccount(b, Config{MaxEnded: 1024})
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		var l Lease
		now = now.Add(time.Millisecond)
		if err := a.Reserve(&l, now, benchCost); err != nil {
			b.Fatal(err)
		}
		l.FirstToken(now)
		l.Release(now)
	}
}

func BenchmarkProgress(b *testing.B) {
	a := benchAccount(b, Config{})
	now := time.Now()
	var l Lease
	if err := a.Reserve(&l, now, Cost{Decode: maxTokens}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	n := int64(0)
	for b.Loop() {
		n++
		now = now.Add(time.Millisecond)
		l.Progress(now, n)
		if n%100 == 0 {
			a.Observe(now)
		}
	}
}

var sink Sums

func BenchmarkSums(b *testing.B) {
	for _, n := range []int{1, 512} {
		b.Run("accounts="+strconv.Itoa(n), func(b *testing.B) {
			led, err := NewLedger(Config{})
			if err != nil {
				b.Fatal(err)
			}
			var as []*Account
			for i := range n {
				a := led.Account("e", strconv.Itoa(i))
				if err := a.Reserve(new(Lease), time.Now(), benchCost); err != nil {
					b.Fatal(err)
				}
				as = append(as, a)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				sink = as[i].Sums()
				if i++; i == n {
					i = 0
				}
			}
		})
	}
}

// A reader beside a writer that never rests.
func BenchmarkSumsContended(b *testing.B) {
	a := benchAccount(b, Config{MaxEnded: 64})
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		now := time.Now()
		for !stop.Load() {
			var l Lease
			now = now.Add(time.Millisecond)
			if a.Reserve(&l, now, benchCost) == nil {
				l.Release(now)
			}
		}
	}()
	b.ReportAllocs()
	for b.Loop() {
		sink = a.Sums()
	}
	stop.Store(true)
	<-done
}

// One observation beside 10 000 live leases that do not move.
func BenchmarkObserveManyLive(b *testing.B) {
	a := benchAccount(b, Config{})
	now := time.Now()
	for range 10_000 {
		if err := a.Reserve(new(Lease), now, benchCost); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Millisecond)
		a.Observe(now)
	}
}

func BenchmarkOldest(b *testing.B) {
	led, err := NewLedger(Config{})
	if err != nil {
		b.Fatal(err)
	}
	now := time.Now()
	for i := range 512 {
		a := led.Account("e", strconv.Itoa(i))
		for range 20 {
			if err := a.Reserve(new(Lease), now, benchCost); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		led.Oldest(1)
	}
}

func benchTime(ms int) time.Time { return time.UnixMilli(int64(ms)) }

// A clock set back by far costs one long walk, not one for each later lease.
func BenchmarkReserveAfterClockSetBack(b *testing.B) {
	a := benchAccount(b, Config{})
	leases := make([]Lease, 20_000)
	for i := range leases {
		if err := a.Reserve(&leases[i], benchTime(1_000_000), benchCost); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		var l Lease
		i++
		if err := a.Reserve(&l, benchTime(i), benchCost); err != nil {
			b.Fatal(err)
		}
		l.Release(benchTime(i))
	}
}
