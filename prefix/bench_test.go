package prefix_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/prefix"
)

func benchTokens[T ~int | ~int32](n int) []T {
	tokens := make([]T, n)
	for i := range tokens {
		tokens[i] = T(uint32(i) * 2654435761 % 128000)
	}
	return tokens
}

// pureChain is the yardstick: xxhash over every block of 64 ready bytes and the hash before it, nothing kept.
// Where that hash stands matters: behind the block, as in this package, a processor overlaps the blocks; in
// front of it, as one would write it first, it cannot.
func pureChain(raw []byte, front bool) uint64 {
	var buf [72]byte
	block, at := buf[:64], buf[64:]
	if front {
		at, block = buf[:8], buf[8:]
	}
	prev := uint64(1)
	for ; len(raw) >= 64; raw = raw[64:] {
		copy(block, raw[:64])
		binary.LittleEndian.PutUint64(at, prev)
		prev = xxhash.Sum64(buf[:])
	}
	return prev
}

var sink uint64

// BenchmarkPrompt takes a prompt from its tokens to Match and Record, block 16, and beside it, in turns, the pure
// chained xxhash of the same blocks. x-behind and x-front are the ratios to the two forms of that; "warm" records
// what is held already, "new" a prompt whose second half is new each time on a holder that is full.
func BenchmarkPrompt(b *testing.B) {
	for _, n := range []int{2048, 8192, 32768} {
		b.Run(fmt.Sprintf("tokens=%d/int32/warm", n), func(b *testing.B) { benchPrompt[int32](b, n, false) })
		b.Run(fmt.Sprintf("tokens=%d/int/warm", n), func(b *testing.B) { benchPrompt[int](b, n, false) })
		b.Run(fmt.Sprintf("tokens=%d/int32/new", n), func(b *testing.B) { benchPrompt[int32](b, n, true) })
	}
}

func benchPrompt[T ~int | ~int32](b *testing.B, n int, fresh bool) {
	x := index(b, prefix.Config{})
	s := scope(b, prefix.Parts{Model: "m"})
	var hold []prefix.Holder
	for range 8 {
		hold = append(hold, x.Add(1<<20))
	}
	tokens := benchTokens[T](n)
	raw := make([]byte, 0, 4*n)
	for _, v := range tokens {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(v))
	}
	var dst []int64
	run := func(i int) {
		if fresh {
			tokens[n/2] = T(i)
		}
		q, err := prefix.FromTokens(s, 16, tokens)
		if err != nil {
			b.Fatal(err)
		}
		dst = x.Match(q, dst)
		x.Record(hold[i%8], q)
	}
	for i := range 1000 {
		run(i)
	}
	b.ReportAllocs()
	var behind, front, whole []time.Duration
	i := 1000
	for b.Loop() {
		t0 := time.Now()
		sink += pureChain(raw, false)
		t1 := time.Now()
		sink += pureChain(raw, true)
		t2 := time.Now()
		run(i)
		behind, front, whole = append(behind, t1.Sub(t0)), append(front, t2.Sub(t1)), append(whole, time.Since(t2))
		i++
	}
	// The quieter rounds of each, as other work on the machine disturbs many.
	quiet := func(d []time.Duration) float64 {
		slices.Sort(d)
		return float64(d[len(d)/10])
	}
	w := quiet(whole)
	b.ReportMetric(w, "prompt-ns")
	b.ReportMetric(w/quiet(behind), "x-behind")
	b.ReportMetric(w/quiet(front), "x-front")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkMatch looks up a prompt of 640 shared and 160 own tokens, the shared part held by all.
func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		x := index(b, prefix.Config{})
		for i := range n {
			x.Record(x.Add(0), prompt(b, 40, 10, i))
		}
		q := prompt(b, 40, 10, n/2)
		b.Run(fmt.Sprintf("holders=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			dst := x.Match(q, nil)
			for b.Loop() {
				dst = x.Match(q, dst)
			}
		})
	}
}

// BenchmarkMatchParallel is BenchmarkMatch with 64 holders on all processors.
func BenchmarkMatchParallel(b *testing.B) {
	x := index(b, prefix.Config{})
	for i := range 64 {
		x.Record(x.Add(0), prompt(b, 40, 10, i))
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		q := prompt(b, 40, 10, 32)
		dst := x.Match(q, nil)
		for pb.Next() {
			dst = x.Match(q, dst)
		}
	})
}

// BenchmarkRecordHeld touches a prompt that the holder, one of many, has already.
func BenchmarkRecordHeld(b *testing.B) {
	for _, n := range []int{8, 512} {
		b.Run(fmt.Sprintf("holders=%d", n), func(b *testing.B) {
			x := index(b, prefix.Config{})
			var h prefix.Holder
			for i := range n {
				h = x.Add(0)
				x.Record(h, prompt(b, 40, 10, i))
			}
			q := prompt(b, 40, 10, n-1)
			b.ReportAllocs()
			for b.Loop() {
				x.Record(h, q)
			}
		})
	}
}

// BenchmarkRecordNew records short new prompts; the index is at its bound and evicts as many.
func BenchmarkRecordNew(b *testing.B) {
	x := index(b, prefix.Config{MaxBytes: 16 << 20})
	var hold []prefix.Holder
	for range 64 {
		hold = append(hold, x.Add(0))
	}
	s := scope(b, prefix.Parts{Model: "m"})
	ready := make([]prefix.Sequence, 1<<18)
	for i := range ready {
		ready[i], _ = prefix.FromHashes(s, 16, []uint64{uint64(i % 1000), uint64(i), 3, 4})
	}
	for i, q := range ready {
		x.Record(hold[i%64], q)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		x.Record(hold[i%64], ready[i%len(ready)])
		i++
	}
}

// BenchmarkReclaim takes away 100k prompts of one holder, or half of them, while a reader matches: read-p99-us and
// read-max-us are what the reader saw, the time it was off the processor included.
func BenchmarkReclaim(b *testing.B) {
	s := scope(b, prefix.Parts{Model: "m"})
	ready := make([]prefix.Sequence, 100_000)
	for i := range ready {
		ready[i], _ = prefix.FromHashes(s, 16, []uint64{uint64(i % 100), uint64(i), 3, 4})
	}
	for _, c := range []struct {
		name string
		do   func(x *prefix.Index, h prefix.Holder)
	}{
		{"remove", func(x *prefix.Index, h prefix.Holder) { x.Remove(h) }},
		{"clear", func(x *prefix.Index, h prefix.Holder) { x.Clear(h) }},
		{"evict-half", func(x *prefix.Index, h prefix.Holder) { x.SetCapacity(h, x.Held(h)/2) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			var reads []time.Duration
			var took []time.Duration
			for b.Loop() {
				x := index(b, prefix.Config{})
				other, h := x.Add(0), x.Add(0)
				q := prompt(b, 40, 10, 1)
				x.Record(other, q)
				for _, q := range ready {
					x.Record(h, q)
				}
				var stop atomic.Bool
				done := make(chan struct{})
				go func() {
					defer close(done)
					var dst []int64
					for !stop.Load() {
						start := time.Now()
						dst = x.Match(q, dst)
						reads = append(reads, time.Since(start))
					}
				}()
				start := time.Now()
				c.do(x, h)
				took = append(took, time.Since(start))
				stop.Store(true)
				<-done
			}
			slices.Sort(reads)
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2])/1e6, "ms/reclaim")
			b.ReportMetric(float64(reads[len(reads)*99/100])/1e3, "read-p99-us")
			b.ReportMetric(float64(reads[len(reads)-1])/1e3, "read-max-us")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func BenchmarkNewScope(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		s, err := prefix.NewScope(prefix.Parts{Model: "some/model-70b", Revision: "0123456789abcdef", Tenant: "acme"})
		require.NoError(b, err)
		_ = s
	}
}
