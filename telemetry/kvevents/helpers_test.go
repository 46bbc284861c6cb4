package kvevents_test

import (
	"sync"

	"github.com/stretchr/testify/require"
	"github.com/tinylib/msgp/msgp"

	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/telemetry/kvevents"
)

// size is the block size of most tests, in tokens: small, so that random prompts have blocks in common.
const size = 4

// errorer is what *testing.T, *testing.B and *rapid.T have in common.
type errorer interface {
	require.TestingT
	Helper()
}

// value writes v as MessagePack. Lists become arrays.
func value(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return msgp.AppendNil(b)
	case list:
		b = msgp.AppendArrayHeader(b, uint32(len(v)))
		for _, e := range v {
			b = value(b, e)
		}
		return b
	case []uint32:
		b = msgp.AppendArrayHeader(b, uint32(len(v)))
		for _, e := range v {
			b = msgp.AppendUint32(b, e)
		}
		return b
	case raw:
		return append(b, v...)
	}
	b, err := msgp.AppendIntf(b, v)
	if err != nil {
		panic(err)
	}
	return b
}

type (
	list []any
	raw  []byte
)

// batch is the payload of events, sent at second at.
func batch(at float64, rank any, events ...any) []byte {
	return value(nil, list{at, list(events), rank})
}

func stored(parent any, tokens []uint32, hashes ...any) list {
	return list{"BlockStored", list(hashes), parent, tokens, size, nil}
}

func removed(hashes ...any) list { return list{"BlockRemoved", list(hashes)} }

func cleared() list { return list{"AllBlocksCleared"} }

// span are the tokens of the blocks [from, to) of prompt id. Prompts of different ids share nothing.
func span(id uint32, from, to int) []uint32 {
	var out []uint32
	for i := from * size; i < to*size; i++ {
		out = append(out, id<<16|uint32(i))
	}
	return out
}

// index is a Sink of one endpoint named "e".
type index struct {
	t *prefix.Index
	h prefix.Holder

	mu     sync.Mutex
	fail   error
	events []prefix.Event
	clears int
}

func newIndex(t errorer) *index {
	t.Helper()
	x, err := prefix.New(prefix.Config{})
	require.NoError(t, err)
	return &index{t: x, h: x.Add(0)}
}

func (x *index) ApplyKV(_ string, e prefix.Event) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.fail != nil {
		return x.fail
	}
	x.events = append(x.events, e)
	x.t.Apply(x.h, e)
	return nil
}

func (x *index) ClearPrefixes(string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.fail != nil {
		return x.fail
	}
	x.clears++
	x.t.Clear(x.h)
	return nil
}

// blocks is how many leading blocks of the prompt the index believes the endpoint has.
func (x *index) blocks(t errorer, s prefix.Scope, tokens []uint32) int {
	t.Helper()
	q, err := prefix.FromTokens(s, size, tokens)
	require.NoError(t, err)
	return int(x.t.Match(q, nil)[x.h.Slot()] / size)
}

func scope(t errorer, p prefix.Parts) prefix.Scope {
	t.Helper()
	p.Model = "m"
	s, err := prefix.NewScope(p)
	require.NoError(t, err)
	return s
}

// applier makes an Applier that feeds a new index, after change has had its way with the configuration.
func applier(t errorer, change func(*kvevents.Config)) (*kvevents.Applier, *index) {
	t.Helper()
	x := newIndex(t)
	cfg := kvevents.Config{ID: "e", Sink: x, BlockTokens: size, Base: scope(t, prefix.Parts{})}
	if change != nil {
		change(&cfg)
	}
	a, err := kvevents.New(cfg)
	require.NoError(t, err)
	return a, x
}
