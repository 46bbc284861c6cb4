package kvevents_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/telemetry/kvevents"
)

// long is the block size of benchmarks, and a prompt of 32k tokens has deep blocks of it.
const (
	long = 16
	deep = 2048
)

func longTokens(id uint32, blocks int) []uint32 {
	out := make([]uint32, blocks*long)
	for i := range out {
		out[i] = id*1_000_003 + uint32(i)*7
	}
	return out
}

func longStored(parent any, tokens []uint32, first uint64) list {
	var hashes list
	for i := range len(tokens) / long {
		hashes = append(hashes, first+uint64(i))
	}
	return list{"BlockStored", hashes, parent, tokens, long, nil, "GPU"}
}

func longApplier(b *testing.B) (*kvevents.Applier, *index) {
	a, x := applier(b, func(c *kvevents.Config) { c.BlockTokens = long; c.MaxBlocks = 1 << 20 })
	return a, x
}

func BenchmarkDecode(b *testing.B) {
	payload := batch(1, 0, longStored(nil, longTokens(1, deep), 1))
	var into kvevents.Batch
	b.ReportAllocs()
	b.SetBytes(int64(len(payload)))
	for b.Loop() {
		if err := kvevents.Decode(&into, payload, kvevents.Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}

// A prompt of 32k tokens is stored at once, and evicted block by block from its tail.
func BenchmarkPrompt(b *testing.B) {
	a, x := longApplier(b)
	var gone list
	for i := deep; i > 0; i-- {
		gone = append(gone, removed(uint64(i)))
	}
	in := batch(1, 0, longStored(nil, longTokens(1, deep), 1))
	out := batch(1, 0, gone...)
	seq := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		if err := a.Apply(0, seq, in); err != nil {
			b.Fatal(err)
		}
		if err := a.Apply(0, seq+1, out); err != nil {
			b.Fatal(err)
		}
		seq += 2
		x.events = x.events[:0]
	}
	require.Zero(b, x.t.Held(x.h))
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/deep, "ns/block")
}

// A decoding request fills one more block behind 32k tokens: the event that comes most often, at the worst depth. Every
// other one takes the block away again.
func BenchmarkGrow(b *testing.B) {
	a, x := longApplier(b)
	tokens := longTokens(1, deep)
	require.NoError(b, a.Apply(0, 0, batch(1, 0, longStored(nil, tokens[:(deep-1)*long], 1))))
	payloads := [][]byte{batch(1, 0, longStored(deep-1, tokens[(deep-1)*long:], deep)), batch(1, 0, removed(deep))}
	seq := uint64(1)
	b.ReportAllocs()
	for b.Loop() {
		if err := a.Apply(0, seq, payloads[(seq-1)%2]); err != nil {
			b.Fatal(err)
		}
		seq++
		x.events = x.events[:0]
	}
}

// What hashing the whole prompt for each event would cost instead, without the index.
func BenchmarkRehash(b *testing.B) {
	s := scope(b, prefix.Parts{})
	tokens := longTokens(1, deep)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := prefix.FromTokens(s, long, tokens); err != nil {
			b.Fatal(err)
		}
	}
}

// The memory of an Applier must be what the documentation says. Not parallel: nothing else may allocate meanwhile.
func TestMemory(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const blocks = 1 << 17
	cfg := kvevents.Config{ID: "e", Sink: deaf{}, BlockTokens: long, Base: scope(t, prefix.Parts{})}
	a, err := kvevents.New(cfg)
	require.NoError(t, err)
	before := heap()
	for i := range blocks / 512 {
		require.NoError(t, a.Apply(0, uint64(i), batch(1, 0, longStored(nil, longTokens(uint32(i), 512), uint64(i*512+1)))))
	}
	per := float64(heap()-before) / blocks
	require.Equal(t, blocks, a.Stats().Held)
	t.Logf("%.0f bytes per block", per)
	require.Less(t, per, 150.0)
	require.NoError(t, a.Lost(0))
	require.Less(t, heap()-before, int64(4<<20), "it is given back")
	huge := batch(1, 0, longStored(nil, make([]uint32, 1<<21), 1), cleared())
	require.NoError(t, a.Apply(0, 1<<20, huge))
	huge = nil
	require.Less(t, heap()-before, int64(4<<20), "a huge batch leaves nothing behind")
	runtime.KeepAlive(a)
}

// deaf is a Sink that keeps nothing.
type deaf struct{}

func (deaf) ApplyKV(string, prefix.Event) error { return nil }
func (deaf) ClearPrefixes(string) error         { return nil }
