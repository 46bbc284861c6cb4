package prefix_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/prefix"
)

// twin drives an Index and, beside it, a model that is just a set of strings per holder.
type twin struct {
	x      *prefix.Index
	scopes []prefix.Scope
	hold   []*twinHolder // by position; removed ones stay, to be called late
	dst    []int64
}

type twinHolder struct {
	h        prefix.Holder
	capacity int64
	exact    bool
	dead     bool
	loose    bool            // was bounded once: blocks is a superset of what is held
	blocks   map[string]bool // "scope/size:path"
}

func newTwin(t require.TestingT, cfg prefix.Config) *twin {
	x, err := prefix.New(cfg)
	require.NoError(t, err)
	w := &twin{x: x}
	for _, m := range []string{"m", "n"} {
		s, err := prefix.NewScope(prefix.Parts{Model: m})
		require.NoError(t, err)
		w.scopes = append(w.scopes, s)
	}
	return w
}

// text is a prompt over a small alphabet, one letter a block.
type text struct {
	scope int
	size  int // tokens per block
	path  string
}

func (w *twin) sequence(t require.TestingT, p text) prefix.Sequence {
	var tokens []int32
	for _, r := range p.path {
		for range p.size {
			tokens = append(tokens, int32(r))
		}
	}
	q, err := prefix.FromTokens(w.scopes[p.scope], p.size, tokens)
	require.NoError(t, err)
	require.Equal(t, len(p.path), q.Blocks())
	return q
}

func (p text) key(blocks int) string {
	return fmt.Sprintf("%d/%d:%s", p.scope, p.size, p.path[:blocks])
}

func (m *twinHolder) match(p text) int64 {
	n := 0
	for n < len(p.path) && m.blocks[p.key(n+1)] {
		n++
	}
	return int64(n * p.size)
}

func (w *twin) add(capacity int64) {
	w.hold = append(w.hold, &twinHolder{h: w.x.Add(capacity), capacity: capacity, loose: capacity > 0, blocks: map[string]bool{}})
}

func (w *twin) record(t require.TestingT, m *twinHolder, p text) {
	q := w.sequence(t, p)
	w.x.Record(m.h, q)
	if m.dead || m.exact {
		return
	}
	for i := range p.path {
		m.blocks[p.key(i+1)] = true
	}
	want := q.Tokens()
	if m.capacity > 0 {
		want = min(want, m.capacity/int64(p.size)*int64(p.size))
	}
	require.Equal(t, want, w.x.Match(q, nil)[m.h.Slot()], "the newest prompt is whole")
}

func (w *twin) apply(t require.TestingT, m *twinHolder, kind prefix.EventKind, p text, from int) {
	w.x.Apply(m.h, prefix.Event{Kind: kind, Prefix: w.sequence(t, p), From: from})
	if m.dead || kind < prefix.Stored || kind > prefix.Cleared {
		return
	}
	if !m.exact || kind == prefix.Cleared {
		clear(m.blocks)
	}
	m.exact = true
	for i := max(from, 0); i < len(p.path); i++ {
		switch kind {
		case prefix.Stored:
			m.blocks[p.key(i+1)] = true
		case prefix.Removed:
			delete(m.blocks, p.key(i+1))
		}
	}
}

func (w *twin) setCapacity(m *twinHolder, capacity int64) {
	w.x.SetCapacity(m.h, capacity)
	m.capacity = capacity
	m.loose = m.loose || capacity > 0
}

func (w *twin) clear(m *twinHolder) {
	w.x.Clear(m.h)
	clear(m.blocks)
}

func (w *twin) remove(m *twinHolder) {
	w.x.Remove(m.h)
	m.dead = true
	clear(m.blocks)
}

// check compares everything that can be asked.
func (w *twin) check(t require.TestingT, p text) {
	require.NoError(t, w.x.Check())
	w.dst = w.x.Match(w.sequence(t, p), w.dst)
	require.Len(t, w.dst, w.x.Slots())
	used := map[int]bool{}
	for _, m := range w.hold {
		slot := m.h.Slot()
		if m.dead {
			require.Zero(t, w.x.Held(m.h))
			require.False(t, w.x.Exact(m.h))
			continue
		}
		require.False(t, used[slot], "one slot, two holders")
		used[slot] = true
		require.Equal(t, m.exact, w.x.Exact(m.h))
		var held int64
		for k := range m.blocks {
			held += int64(k[2] - '0')
		}
		if m.capacity > 0 {
			require.LessOrEqual(t, w.x.Held(m.h), m.capacity)
		}
		if m.loose {
			require.LessOrEqual(t, w.x.Held(m.h), held)
			require.LessOrEqual(t, w.dst[slot], m.match(p), "never longer than what was recorded")
		} else {
			require.Equal(t, held, w.x.Held(m.h))
			require.Equal(t, m.match(p), w.dst[slot])
		}
	}
	for slot, tokens := range w.dst {
		if !used[slot] {
			require.Zero(t, tokens, "a free slot matches nothing")
		}
	}
}

func (w *twin) base(t require.TestingT) {
	for _, m := range w.hold {
		w.remove(m)
	}
	fresh, err := prefix.New(prefix.Config{})
	require.NoError(t, err)
	have, want := w.x.Stats(), fresh.Stats()
	require.Equal(t, want.Bytes, have.Bytes)
	require.Zero(t, have.Nodes+have.Blocks+have.Holdings+int64(have.Holders))
	require.NoError(t, w.x.Check())
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newTwin(t, prefix.Config{})
		w.x.SetMerged(rapid.SampledFrom([]int{0, 3, 64}).Draw(t, "merged"))
		letters := rapid.StringOfN(rapid.SampledFrom([]rune("aaabbc")), 0, 9, -1)
		scope, size := rapid.SampledFrom([]int{0, 0, 0, 0, 1}), rapid.SampledFrom([]int{1, 1, 1, 1, 2})
		capacity := rapid.SampledFrom([]int64{0, 0, 0, 1, 5, 9, 12})
		draw := func(t *rapid.T) text {
			return text{scope.Draw(t, "scope"), size.Draw(t, "size"), letters.Draw(t, "path")}
		}
		pick := func(t *rapid.T) *twinHolder {
			if len(w.hold) == 0 {
				w.add(0)
			}
			return rapid.SampledFrom(w.hold).Draw(t, "holder")
		}
		record := func(t *rapid.T) { w.record(t, pick(t), draw(t)) }
		event := func(t *rapid.T) {
			kind := rapid.SampledFrom([]prefix.EventKind{1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 0, 9}).Draw(t, "kind")
			w.apply(t, pick(t), kind, draw(t), rapid.IntRange(-1, 9).Draw(t, "from"))
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				if len(w.hold) < 8 { // of which most are alive
					w.add(capacity.Draw(t, "capacity"))
				}
			},
			"record": record, "record again": record,
			"event": event, "event again": event, "event more": event,
			"capacity": func(t *rapid.T) { w.setCapacity(pick(t), capacity.Draw(t, "capacity")) },
			"clear": func(t *rapid.T) {
				if rapid.IntRange(0, 2).Draw(t, "really") == 0 {
					w.clear(pick(t))
				}
			},
			"clear all": func(t *rapid.T) {
				if rapid.IntRange(0, 5).Draw(t, "really") == 0 {
					w.x.ClearAll()
					for _, m := range w.hold {
						clear(m.blocks)
					}
				}
			},
			"remove": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "really") == 0 {
					w.remove(pick(t))
				}
			},
			"": func(t *rapid.T) { w.check(t, draw(t)) },
		})
		w.base(t)
	})
}

// FuzzProgram reads its input as a program: one byte of operation, one of holder, one of scope, size and start,
// one of length and then the letters.
func FuzzProgram(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 2, 0, 0, 5, 1, 2, 0, 1, 2, 2, 0, 0, 3, 1, 2, 2, 6, 0, 0, 1, 1})
	f.Add([]byte{0, 9, 0, 0, 4, 0, 0, 3, 1, 2, 0, 5, 0, 0, 1, 1, 4, 0, 4, 1, 1, 7, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 400 {
			return
		}
		w := newTwin(t, prefix.Config{MaxBytes: prefix.MinBytes})
		w.x.SetMerged(len(b) % 8)
		w.add(0)
		for len(b) >= 4 {
			op, who, how, n := b[0]%10, int(b[1]), int(b[2]), int(b[3]%12)
			b = b[4:]
			n = min(n, len(b))
			path := slices.Clone(b[:n])
			b = b[n:]
			for i := range path {
				path[i] = 'a' + path[i]%3
			}
			p := text{how & 1, 1 + how>>1&1, string(path)}
			from := how>>2&15 - 1
			m := w.hold[who%len(w.hold)]
			switch op {
			case 0:
				if len(w.hold) < 6 {
					w.add(int64(who % 14))
				}
			case 1, 2, 3:
				w.record(t, m, p)
			case 4:
				w.apply(t, m, prefix.Stored, p, from)
			case 5:
				w.apply(t, m, prefix.Removed, p, from)
			case 6:
				w.apply(t, m, prefix.EventKind(how%5), p, from)
			case 7:
				w.setCapacity(m, int64(n))
			case 8:
				w.clear(m)
			case 9:
				w.remove(m)
			}
			w.check(t, p)
		}
		w.base(t)
	})
}
