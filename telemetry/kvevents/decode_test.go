package kvevents_test

import (
	"encoding/hex"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/telemetry/kvevents"
)

func decode(payload []byte, l kvevents.Limits) (kvevents.Batch, error) {
	var b kvevents.Batch
	err := kvevents.Decode(&b, payload, l)
	return b, err
}

// The bytes that msgspec writes for a batch as vLLM defines it, spelled out.
func TestDecodeBytes(t *testing.T) {
	t.Parallel()
	payload, err := hex.DecodeString(strings.Join([]string{
		"93", "cb41d954fc40000000", // [ts,
		"93",                                                  // [
		"98", "ab", hex.EncodeToString([]byte("BlockStored")), // ["BlockStored",
		"92", "c403010203", "d3ffffffffffffffff", // [b"\1\2\3", -1],
		"cfffffffffffffffff",                     // parent 2^64-1,
		"94", "00", "7f", "cd0100", "ce00010000", // [0, 127, 256, 65536],
		"02", "07", "a3475055", "a161", // 2, 7, "GPU", "a"],
		"93", "ac", hex.EncodeToString([]byte("BlockRemoved")), "9105", "c0", // ["BlockRemoved", [5], None],
		"91", "b0", hex.EncodeToString([]byte("AllBlocksCleared")), // ["AllBlocksCleared"]],
		"03", // 3]
	}, ""))
	require.NoError(t, err)
	b, err := decode(payload, kvevents.Limits{})
	require.NoError(t, err)
	require.Equal(t, 1700000000.0, b.Time)
	require.Equal(t, 3, b.Rank)
	require.Equal(t, []kvevents.Event{
		{
			Kind:   kvevents.BlockStored,
			Hashes: []kvevents.BlockHash{kvevents.BytesHash([]byte{1, 2, 3}), kvevents.IntHash(-1)},
			Parent: kvevents.UintHash(math.MaxUint64), HasParent: true,
			Tokens: []uint32{0, 127, 256, 65536}, BlockTokens: 2,
			LoRA: kvevents.LoRA{ID: 7, HasID: true, Name: "a", HasName: true}, Medium: "GPU",
		},
		{Kind: kvevents.BlockRemoved, Hashes: []kvevents.BlockHash{kvevents.IntHash(5)}},
		{Kind: kvevents.AllBlocksCleared},
	}, b.Events)
}

func TestDecodeForms(t *testing.T) {
	t.Parallel()
	events := func(v ...any) []byte { return value(nil, list{1.5, list(v)}) }
	for name, c := range map[string]struct {
		payload []byte
		check   func(t *testing.T, b kvevents.Batch)
	}{
		"no event, no rank": {value(nil, list{int64(7), list{}}), func(t *testing.T, b kvevents.Batch) {
			require.Equal(t, 7.0, b.Time)
			require.Empty(t, b.Events)
			require.Zero(t, b.Rank)
		}},
		"fields added at the end of the batch": {
			value(nil, list{1.5, list{cleared()}, nil, "new", list{list{}, map[string]any{"a": 1}}}),
			func(t *testing.T, b kvevents.Batch) { require.Len(t, b.Events, 1) },
		},
		"fields added at the end of events": {
			events(
				append(cleared(), 1.5, list{nil}),
				append(removed(1), "CPU", 9, map[string]any{"x": list{1}}),
				list{"BlockStored", list{1}, nil, []uint32{1}, 1, nil, nil, nil, nil, 0, "full_attention"},
			),
			func(t *testing.T, b kvevents.Batch) {
				require.Len(t, b.Events, 3)
				require.Equal(t, "CPU", b.Events[1].Medium)
				require.Equal(t, []uint32{1}, b.Events[2].Tokens)
			},
		},
		"extra keys": {
			events(list{"BlockStored", list{1, 2, 3}, nil, []uint32{}, 1, nil, nil, nil, list{
				list{"salt", list{"image", 5}, nil, true, 1.5, []byte{1}, uint64(math.MaxUint64)}, nil, list{},
			}}),
			func(t *testing.T, b kvevents.Batch) {
				require.Equal(t, [][]any{
					{"salt", []any{"image", int64(5)}, nil, true, 1.5, []byte{1}, uint64(math.MaxUint64)}, nil, nil,
				}, b.Events[0].Extra)
			},
		},
		"extra keys of no block": {
			events(list{"BlockStored", list{1, 2}, nil, []uint32{}, 1, nil, nil, nil, list{nil, nil}}),
			func(t *testing.T, b kvevents.Batch) { require.Nil(t, b.Events[0].Extra) },
		},
		"adapter without a name": {
			events(list{"BlockStored", list{1}, nil, []uint32{}, 1, 0}),
			func(t *testing.T, b kvevents.Batch) {
				require.Equal(t, kvevents.LoRA{HasID: true}, b.Events[0].LoRA)
				require.True(t, b.Events[0].LoRA.Used())
				require.False(t, b.Events[0].HasParent)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, err := decode(c.payload, kvevents.Limits{})
			require.NoError(t, err)
			c.check(t, b)
		})
	}
}

func TestDecodeErrors(t *testing.T) {
	t.Parallel()
	events := func(v ...any) []byte { return value(nil, list{1.5, list(v)}) }
	deep := raw(slices.Repeat([]byte{0x91}, 1000))
	small := kvevents.Limits{Bytes: 400, Events: 2, Blocks: 3, Tokens: 4}
	for want, payload := range map[string][]byte{
		"payload has 401 bytes, more than 400":                             make([]byte, 401),
		"batch: the payload ends where an array belongs":                   nil,
		"batch: not an array but str (byte 0xa1)":                          value(nil, "x"),
		"batch: 1 fields, at least the time":                               value(nil, list{1.5}),
		"batch: 2 elements in 0 bytes":                                     {0x92},
		"batch: 4294967295 elements, more than 64":                         {0xdd, 0xff, 0xff, 0xff, 0xff},
		"batch: 1 bytes behind its end":                                    append(events(), 0),
		"batch: a field behind those known: value":                         append(value(nil, raw{0x94, 0}), 0x90, 0xc0, 0xc1),
		"ts: not a number but str":                                         value(nil, list{"x", list{}}),
		"ts: not a finite number":                                          value(nil, list{math.NaN(), list{}}),
		"events: not an array but nil":                                     value(nil, list{1.5, nil}),
		"events: 3 elements, more than 2":                                  events(cleared(), cleared(), cleared()),
		"events[1]: not an array but int":                                  events(cleared(), 7),
		"events[0]: no tag":                                                events(list{}),
		"events[0].tag: not a string but int":                              events(list{7}),
		"events[0].tag: \"BlockMoved\" is no event known here":             events(list{"BlockMoved"}),
		"events[0].block_size: missing, BlockStored has 4 fields":          events(list{"BlockStored", list{}, nil, list{}}),
		"events[0].block_hashes: missing":                                  events(list{"BlockRemoved"}),
		"events[0].block_hashes: not an array but int":                     events(list{"BlockRemoved", 1}),
		"events[0].block_hashes[1]: not an integer or a byte string but s": events(removed(1, "x")),
		"events[0].block_hashes: 4 elements, more than 3":                  events(removed(1, 2, 3, 4)),
		"events[1].block_hashes: 2 elements, more than 1":                  events(removed(1, 2), removed(3, 4)),
		"events[0].parent_block_hash: not an integer or a byte string":     events(stored("x", nil, 1)),
		"events[0].token_ids[2]: not an integer but float64":               events(list{"BlockStored", list{}, nil, list{1, 2, 1.5}, 4}),
		"events[0].token_ids[0]: not an integer in [0, 2^32)":              events(list{"BlockStored", list{}, nil, list{-1}, 4}),
		"events[0].token_ids: 5 elements, more than 4":                     events(stored(nil, []uint32{1, 2, 3, 4, 5})),
		"events[0].token_ids[1]: not an integer in [0, 2^32) but int":      events(list{"BlockStored", list{}, nil, list{1, int64(1) << 32}, 4}),
		"events[0].block_size: not an integer but nil":                     events(list{"BlockStored", list{}, nil, list{}, nil}),
		"events[0].block_size: not an integer below 2^63":                  events(list{"BlockStored", list{}, nil, list{}, uint64(1 << 63)}),
		"events[0].lora_id: not an integer but str":                        events(list{"BlockStored", list{}, nil, list{}, 4, "x"}),
		"events[0].medium: not a string but int":                           events(list{"BlockRemoved", list{}, 1}),
		"events[0].lora_name: not a string but array":                      events(list{"BlockStored", list{}, nil, list{}, 4, nil, nil, list{}}),
		"events[0].extra_keys: 1 elements for 2 blocks":                    events(list{"BlockStored", list{1, 2}, nil, list{}, 4, nil, nil, nil, list{nil}}),
		"events[0].extra_keys[0]: key: not a plain value or an array but":  events(list{"BlockStored", list{1}, nil, list{}, 4, nil, nil, nil, list{list{map[string]any{}}}}),
		"data_parallel_rank is -1, it must be in [0, 65535]":               value(nil, list{1.5, list{}, -1}),
		"data_parallel_rank: not an integer but bool":                      value(nil, list{1.5, list{}, true}),
	} {
		b, err := decode(payload, small)
		require.ErrorContains(t, err, "kvevents: ")
		require.ErrorContains(t, err, want)
		require.Empty(t, b.Events, "nothing half done")
	}
	_, err := decode(value(nil, list{1.5, list{list{"AllBlocksCleared", deep}}}), kvevents.Limits{})
	require.ErrorContains(t, err, "deeper than 16")
	keys := raw(append(slices.Repeat([]byte{0x91}, 40), 0x90))
	_, err = decode(events(list{"BlockStored", list{1}, nil, list{}, 4, nil, nil, nil, list{keys}}), kvevents.Limits{})
	require.ErrorContains(t, err, "extra_keys[0]: deeper than 16")
	wide := list{}
	for range 300 {
		wide = append(wide, nil)
	}
	_, err = decode(events(list{"BlockStored", list{1}, nil, list{}, 4, nil, nil, nil, list{wide}}), kvevents.Limits{})
	require.ErrorContains(t, err, "extra_keys[0]: keys: 300 elements, more than 256")
	var many list // events of a block with 200 keys
	for range 100 {
		many = append(many, list{"BlockStored", list{1}, nil, list{}, 4, nil, nil, nil, list{wide[:200]}})
	}
	_, err = decode(events(many...), kvevents.Limits{Blocks: 5000})
	require.NoError(t, err, "20,000 keys")
	_, err = decode(events(many...), kvevents.Limits{Blocks: 4999})
	require.ErrorContains(t, err, "events[99].extra_keys[0]: keys: 200 elements, more than 196")
	_, err = decode(events(list{strings.Repeat("x", 2000)}), kvevents.Limits{})
	require.ErrorContains(t, err, "events[0].tag: 2000 bytes, more than 1024")
	_, err = decode(nil, kvevents.Limits{Bytes: -1, Events: -2, Blocks: -3, Tokens: -4})
	for _, want := range []string{"Limits.Bytes is -1", "Limits.Events is -2", "Limits.Blocks is -3", "Limits.Tokens is -4"} {
		require.ErrorContains(t, err, want)
	}
}

// A batch cut short anywhere is an error, and memory used again keeps nothing of what was in it.
func TestDecodeCutShort(t *testing.T) {
	t.Parallel()
	full := value(nil, list{1.5, list{
		list{"BlockStored", list{1, []byte("abc")}, 3, span(1, 0, 2), size, 7, "GPU", "a", list{list{"salt", list{1}}, nil}},
		list{"BlockRemoved", list{1, -7}, "GPU"}, cleared(),
	}, 2, list{1, "x", map[string]any{"k": 1}}})
	var b kvevents.Batch
	require.NoError(t, kvevents.Decode(&b, full, kvevents.Limits{}))
	for n := range full {
		require.Error(t, kvevents.Decode(&b, full[:n], kvevents.Limits{}), n)
		require.Empty(t, b.Events)
	}
	require.NoError(t, kvevents.Decode(&b, batch(2, nil, removed(9), stored(nil, nil)), kvevents.Limits{}))
	require.Equal(t, []kvevents.Event{
		{Kind: kvevents.BlockRemoved, Hashes: []kvevents.BlockHash{kvevents.IntHash(9)}},
		{Kind: kvevents.BlockStored, Hashes: []kvevents.BlockHash{}, Tokens: []uint32{}, BlockTokens: size},
	}, b.Events)
	require.Zero(t, b.Rank)
}

func TestBlockHash(t *testing.T) {
	t.Parallel()
	require.Equal(t, kvevents.IntHash(5), kvevents.UintHash(5))
	all := []kvevents.BlockHash{
		kvevents.IntHash(0), kvevents.IntHash(-1), kvevents.UintHash(math.MaxUint64), kvevents.BytesHash(nil),
		kvevents.BytesHash([]byte{0}), kvevents.BytesHash(make([]byte, 8)), kvevents.BytesHash(make([]byte, 32)),
	}
	for i, h := range all {
		require.Equal(t, i, slices.Index(all, h))
	}
	require.Equal(t, "-1", all[1].String())
	require.Equal(t, "18446744073709551615", all[2].String())
	require.Regexp(t, "^bytes:[0-9a-f]{32}$", all[3].String())
	require.Equal(t, "BlockStored BlockRemoved AllBlocksCleared unknown",
		kvevents.BlockStored.String()+" "+kvevents.BlockRemoved.String()+" "+kvevents.AllBlocksCleared.String()+" "+kvevents.Kind(0).String())
}

func FuzzDecode(f *testing.F) {
	f.Add(batch(1, nil, stored(nil, span(1, 0, 2), 1, 2), removed(1), cleared()))
	f.Add(batch(1, 3, list{"BlockStored", list{[]byte("abc")}, -5, span(1, 0, 1), size, 7, "GPU", "a", list{list{"salt", list{1, nil}}}, 0}))
	f.Add(value(nil, list{1, list{list{"BlockRemoved", list{1, 2}, "CPU", list{map[string]any{"a": 1.5}}}}, nil, "new"}))
	limits := kvevents.Limits{Bytes: 1 << 12, Events: 8, Blocks: 16, Tokens: 64}
	f.Fuzz(func(t *testing.T, payload []byte) {
		b, err := decode(payload, limits)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "kvevents: ") || len(b.Events) > 0 {
				t.Fatalf("%v with %d events", err, len(b.Events))
			}
			return
		}
		blocks, tokens := 0, 0
		for _, e := range b.Events {
			blocks += len(e.Hashes)
			tokens += len(e.Tokens)
			if e.Extra != nil && len(e.Extra) != len(e.Hashes) {
				t.Fatal("extra keys that do not fit")
			}
		}
		if len(b.Events) > limits.Events || blocks > limits.Blocks || tokens > limits.Tokens || b.Rank < 0 || b.Rank > kvevents.MaxRank {
			t.Fatal("beyond a limit")
		}
		// What was decoded can be applied, twice over, without harm.
		a, x := applier(t, func(c *kvevents.Config) { c.Limits = limits; c.MaxBlocks = 8 })
		if err := a.Apply(0, 0, payload); err != nil {
			t.Fatal(err)
		}
		_ = a.Apply(0, 1, payload)
		if s := a.Stats(); s.Known > 8 || s.Held > s.Known {
			t.Fatalf("%+v", s)
		}
		if held := x.t.Held(x.h); held > 8*size {
			t.Fatal(held)
		}
	})
}
