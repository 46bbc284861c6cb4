package kvevents_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/telemetry/kvevents"
)

// A path is a prompt of the model: what the engine computed it under, then a letter for each block. As there are two letters
// only, prompts share heads.
type path string

var (
	modelKinds  = []string{"base/", "lora/", "salt/"}
	modelScopes = map[string]prefix.Parts{"base/": {}, "lora/": {AdapterID: "a", AdapterDigest: "d"}}
)

func (p path) kind() string { return string(p[:5]) }

func (p path) tokens() []uint32 {
	var out []uint32
	for _, c := range p[5:] {
		out = append(out, uint32(c), 1, 2, 3)
	}
	return out
}

// cache is what a rank holds: how many copies of each block, that is of the path that ends with it.
type cache map[path]int

// engine is one source: ranks that share a stream. It keeps everything it has published.
type engine struct {
	ranks     [2]cache
	seed      int // of its hashes
	epoch     int // of its clock
	log       [][]byte
	delivered int  // batches that the applier has had or knows to have missed
	exact     bool // nothing was lost since the beginning, or since all was cleared
}

func newEngine(seed, epoch int) *engine {
	return &engine{ranks: [2]cache{{}, {}}, seed: seed, epoch: epoch, exact: true}
}

// hash names a block as one process of an engine does: as an integer or as bytes.
func (e *engine) hash(p path) any {
	if e.seed%2 == 0 {
		return []byte(fmt.Sprint(e.seed, p))
	}
	h := int64(e.seed)
	for _, c := range p {
		h = h*1_000_003 + int64(c)
	}
	return h
}

func (e *engine) publish(rank int, events ...any) {
	e.log = append(e.log, batch(float64(len(e.log)+10000*e.epoch), rank, events...))
}

// compute runs a prompt on a rank: it finds some leading blocks, unless it ignores those behind reuse, and stores the rest.
// The event says it in pieces of at most step blocks.
func (e *engine) compute(rank int, p path, reuse, step int) []any {
	c := e.ranks[rank]
	hit := 5
	for hit < len(p) && hit < 5+reuse && c[p[:hit+1]] > 0 {
		hit++
	}
	var events []any
	for at := hit; at < len(p); at += step {
		end := min(len(p), at+step)
		var hashes, extra list
		for i := at; i < end; i++ {
			c[p[:i+1]]++
			hashes = append(hashes, e.hash(p[:i+1]))
			if p.kind() == "salt/" && i == 5 {
				extra = append(extra, list{"pepper"})
			} else {
				extra = append(extra, nil)
			}
		}
		var parent, lora any
		if at > 5 {
			parent = e.hash(p[:at])
		}
		if p.kind() == "lora/" {
			lora = 1
		}
		events = append(events, list{"BlockStored", hashes, parent, p.tokens()[(at-5)*size : (end-5)*size], size, lora, "GPU", nil, extra})
	}
	return events
}

type machine struct {
	a       *kvevents.Applier
	x       *index
	engines [2]*engine
	epochs  int
	tight   bool // what the engines have is more than is kept in mind
}

func (m *machine) deliver(t *rapid.T, i int) {
	e := m.engines[i]
	for ; e.delivered < len(e.log); e.delivered++ {
		require.NoError(t, m.a.Apply(i, uint64(e.delivered), e.log[e.delivered]))
	}
}

// restart puts another process in the place of an engine; its hashes may be the same.
func (m *machine) restart(t *rapid.T, i int) {
	seed := m.engines[i].seed
	if rapid.Bool().Draw(t, "other hashes") {
		seed = m.epochs
	}
	m.engines[i] = newEngine(seed, m.epochs)
	m.epochs++
}

func drawPath(t *rapid.T) path {
	return path(rapid.SampledFrom(modelKinds).Draw(t, "kind") + rapid.StringOfN(rapid.RuneFrom([]rune("xy")), 1, 5, -1).Draw(t, "path"))
}

// random does a few random things in the cache of a random rank, in one batch.
func (m *machine) random(t *rapid.T, i int) {
	e := m.engines[i]
	rank := rapid.IntRange(0, 1).Draw(t, "rank")
	c := e.ranks[rank]
	var events []any
	for range rapid.IntRange(0, 4).Draw(t, "changes") {
		switch keys := slices.Sorted(maps.Keys(c)); {
		case len(keys) > 0 && rapid.Bool().Draw(t, "evict"):
			var gone list
			for range rapid.IntRange(1, 3).Draw(t, "number") {
				p := rapid.SampledFrom(keys).Draw(t, "block")
				if tail := rapid.Bool().Draw(t, "tail"); tail {
					for _, q := range keys { // as engines do
						if strings.HasPrefix(string(q), string(p)) {
							p = q
						}
					}
				}
				if c[p] == 0 {
					continue
				}
				if c[p]--; c[p] == 0 {
					delete(c, p)
				}
				gone = append(gone, e.hash(p))
			}
			events = append(events, append(list{"BlockRemoved"}, gone, "GPU"))
		case rapid.IntRange(0, 19).Draw(t, "clear") == 0:
			clear(c)
			events = append(events, cleared())
		default:
			events = append(events, e.compute(rank, drawPath(t), rapid.IntRange(0, 5).Draw(t, "reuse"), rapid.IntRange(1, 5).Draw(t, "step"))...)
		}
	}
	e.publish(rank, events...)
}

// check compares the index with the engines for every prompt there can be.
func (m *machine) check(t *rapid.T) {
	exact := !m.tight && m.engines[0].exact && m.engines[1].exact && m.a.Stats().Suspended == 0
	for kind, parts := range modelScopes {
		s := scope(t, parts)
		for bits := range 32 {
			p := path(kind)
			for i := range 5 {
				p += path("xy"[bits>>i&1 : bits>>i&1+1])
			}
			truth := 0
			for truth < 5 && m.anybody(p[:5+truth+1]) {
				truth++
			}
			got := m.x.blocks(t, s, p.tokens())
			require.LessOrEqual(t, got, truth, "%s: more than the engine has", p)
			if exact {
				require.Equal(t, truth, got, "%s: nothing was lost", p)
			}
		}
	}
	s := m.a.Stats()
	require.LessOrEqual(t, s.Held, s.Known)
	require.LessOrEqual(t, s.Known, m.a.Config().MaxBlocks)
	require.NoError(t, kvevents.Check(m.a))
}

func (m *machine) anybody(p path) bool {
	for _, e := range m.engines {
		if e.ranks[0][p] > 0 || e.ranks[1][p] > 0 {
			return true
		}
	}
	return false
}

// Whatever engines do and whatever is lost on the way: once a loss can be known of, the index gives no endpoint more of a
// prompt than it has; and exactly what it has, where nothing was lost.
func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		lora := scope(t, modelScopes["lora/"])
		most := rapid.SampledFrom([]int{0, 0, 1, 6}).Draw(t, "MaxBlocks")
		a, x := applier(t, func(c *kvevents.Config) {
			c.Sources, c.MaxBlocks = 2, most
			c.Scope = func(k kvevents.Keys) (prefix.Scope, bool) { return lora, k.LoRA.ID == 1 && len(k.Extra) == 0 }
		})
		m := &machine{a: a, x: x, engines: [2]*engine{newEngine(0, 0), newEngine(1, 1)}, epochs: 2, tight: most > 0}
		source := func(t *rapid.T) int { return rapid.IntRange(0, 1).Draw(t, "source") }
		random := func(t *rapid.T) {
			i := source(t)
			m.random(t, i)
			m.deliver(t, i)
		}
		t.Repeat(map[string]func(*rapid.T){
			"":  m.check,
			"a": random, "b": random, "c": random, // often
			"lost": func(t *rapid.T) {
				i := source(t)
				e := m.engines[i]
				for range rapid.IntRange(1, 3).Draw(t, "number") {
					m.random(t, i)
				}
				e.delivered = len(e.log)
				m.random(t, i)
				e.exact = false
				m.deliver(t, i)
			},
			"garbage": func(t *rapid.T) {
				i := source(t)
				e := m.engines[i]
				m.random(t, i)
				require.Error(t, m.a.Apply(i, uint64(e.delivered), []byte("garbage")))
				e.delivered++
				e.exact = false
			},
			"restart": func(t *rapid.T) {
				i := source(t)
				if len(m.engines[i].log) == 0 {
					t.Skip("nothing to restart")
				}
				m.restart(t, i)
				m.random(t, i)
				m.deliver(t, i)
			},
			"again": func(t *rapid.T) {
				i := source(t)
				if e := m.engines[i]; e.delivered > 0 {
					require.NoError(t, m.a.Apply(i, uint64(e.delivered-1), e.log[e.delivered-1]))
				}
			},
			"reconnect": func(t *rapid.T) {
				i := source(t)
				e := m.engines[i]
				require.NoError(t, m.a.Suspend(i))
				if rapid.Bool().Draw(t, "the other goes on") {
					m.random(t, 1-i)
					m.deliver(t, 1-i)
				}
				for range rapid.IntRange(0, 3).Draw(t, "missed") {
					m.random(t, i)
				}
				from, _ := m.a.Position(i)
				first := int(from) + rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "no longer there")
				for seq := first; seq < len(e.log); seq++ {
					if err := m.a.Replay(i, uint64(seq), e.log[seq]); err != nil {
						require.ErrorIs(t, err, kvevents.ErrDiscontinuous)
						require.NoError(t, m.a.Lost(i))
						e.exact = false
						require.NoError(t, m.a.Replay(i, uint64(seq), e.log[seq]))
					}
				}
				if first >= len(e.log) && len(e.log) > 0 {
					e.exact = false // nothing has shown that it goes on
				}
				missed := e.log[e.delivered:]
				require.NoError(t, m.a.Resume(i))
				for j, payload := range missed { // the live stream had them too
					require.NoError(t, m.a.Apply(i, uint64(e.delivered+j), payload))
				}
				e.delivered = len(e.log)
			},
			"restart unseen": func(t *rapid.T) {
				i := source(t)
				require.NoError(t, m.a.Suspend(i))
				m.check(t)
				m.restart(t, i)
				e := m.engines[i]
				for range rapid.IntRange(0, 8).Draw(t, "batches") {
					m.random(t, i)
				}
				e.delivered = len(e.log)
				from, known := m.a.Position(i)
				if int(from) < len(e.log) {
					err := m.a.Replay(i, from, e.log[from])
					if known {
						require.ErrorIs(t, err, kvevents.ErrDiscontinuous)
						require.NoError(t, m.a.Lost(i))
						from = 0
					}
					for seq := int(from); seq < len(e.log); seq++ {
						require.NoError(t, m.a.Replay(i, uint64(seq), e.log[seq]))
					}
				} else {
					e.exact = len(e.log) == 0
				}
				require.NoError(t, m.a.Resume(i))
			},
			"unknown to the sink": func(t *rapid.T) {
				i := source(t)
				m.x.fail = fmt.Errorf("no such endpoint")
				m.random(t, i)
				e := m.engines[i]
				_ = m.a.Apply(i, uint64(e.delivered), e.log[e.delivered])
				e.delivered++
				m.x.fail = nil
				m.random(t, i)
				m.deliver(t, i)
			},
		})
	})
}
