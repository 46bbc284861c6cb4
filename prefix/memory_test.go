//go:build !race

package prefix_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/prefix"
)

// At a million blocks the index must keep to its budget of memory, by the runtime's own count, and its accounting
// must be true. Not parallel: nothing else may allocate meanwhile.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("fills a million blocks")
	}
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	s := scope(t, prefix.Parts{Model: "m"})
	for _, c := range []struct {
		name              string
		prompts, blocks   int
		perBlock, perLeaf int64 // budgets in bytes, 0: none
	}{
		{"long", 500, 2000, 24, 0},
		{"of 128 blocks", 8000, 128, 24, 0},
		{"of 4 blocks", 250_000, 4, 0, 400},
		{"of 1 block", 250_000, 1, 0, 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			hashes := make([]uint64, c.blocks)
			x := index(t, prefix.Config{MaxBytes: 1 << 30})
			h := x.Add(0)
			before, base := heap(), x.Stats().Bytes
			for i := range c.prompts {
				hashes[0] = uint64(i)
				q, _ := prefix.FromHashes(s, 16, hashes)
				x.Record(h, q)
			}
			used, st := heap()-before, x.Stats()
			accounted := st.Bytes - base
			t.Logf("%.2f bytes per block, %.1f per prompt; accounted %.3f of it",
				float64(used)/float64(st.Blocks), float64(used)/float64(c.prompts), float64(accounted)/float64(used))
			require.EqualValues(t, c.prompts*c.blocks, st.Blocks)
			if c.perBlock > 0 {
				require.LessOrEqual(t, used, c.perBlock*st.Blocks)
			}
			if c.perLeaf > 0 {
				require.LessOrEqual(t, used, c.perLeaf*int64(c.prompts))
			}
			require.InEpsilon(t, used, accounted, 0.15)

			x.Clear(h)
			require.Equal(t, base, x.Stats().Bytes)
			require.Less(t, heap()-before, int64(64<<10), "the memory is given back")
		})
	}

	t.Run("many holders", func(t *testing.T) {
		x := index(t, prefix.Config{MaxBytes: 1 << 30})
		var hold []prefix.Holder
		for range 100 {
			hold = append(hold, x.Add(0))
		}
		before, base := heap(), x.Stats().Bytes
		for i := range 4000 {
			q, _ := prefix.FromHashes(s, 16, []uint64{uint64(i), 2})
			for j := range 1 + i%100 {
				x.Record(hold[j], q)
			}
		}
		used, accounted := heap()-before, x.Stats().Bytes-base
		t.Logf("%.1f bytes per holding; accounted %.3f of it",
			float64(used)/float64(x.Stats().Holdings), float64(accounted)/float64(used))
		require.InEpsilon(t, used, accounted, 0.15)
		x.ClearAll()
		require.Equal(t, base, x.Stats().Bytes)
	})
}
