package kvevents

import (
	"fmt"

	"github.com/tinylib/msgp/msgp"
)

// extraKeys reads the extra keys of blocks blocks.
func (d *decoder) extraKeys(blocks int) ([][]any, error) {
	n, err := d.array("extra_keys", d.limits.Blocks)
	if err != nil {
		return nil, err
	}
	if n != blocks {
		return nil, fmt.Errorf("extra_keys: %d elements for %d blocks", n, blocks)
	}
	var out [][]any // stays nil while no block has any
	for i := range n {
		if d.null() {
			continue
		}
		most := min(maxExtra, d.extra)
		budget := most
		keys, err := d.list(&budget, 0)
		if err != nil {
			return nil, fmt.Errorf("extra_keys[%d]: %w", i, err)
		}
		d.extra -= most - budget
		if len(keys) == 0 {
			continue
		}
		if out == nil {
			out = make([][]any, n)
		}
		out[i] = keys
	}
	return out, nil
}

// list reads an array of plain values. budget is how many elements are left to all lists of the block.
func (d *decoder) list(budget *int, depth int) ([]any, error) {
	if depth == maxDepth {
		return nil, fmt.Errorf("deeper than %d", maxDepth)
	}
	n, err := d.array("keys", *budget)
	if err != nil {
		return nil, err
	}
	*budget -= n
	out := make([]any, 0, n)
	for range n {
		v, err := d.value(budget, depth)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

func (d *decoder) value(budget *int, depth int) (any, error) {
	var v any
	var rest []byte
	var err error
	switch t := msgp.NextType(d.rest); t {
	case msgp.ArrayType:
		return d.list(budget, depth+1)
	case msgp.NilType:
		rest, err = msgp.ReadNilBytes(d.rest)
	case msgp.BoolType:
		v, rest, err = msgp.ReadBoolBytes(d.rest)
	case msgp.IntType:
		v, rest, err = msgp.ReadInt64Bytes(d.rest)
	case msgp.UintType:
		var u uint64
		u, rest, err = msgp.ReadUint64Bytes(d.rest)
		if v = u; u <= 1<<63-1 {
			v = int64(u)
		}
	case msgp.Float64Type, msgp.Float32Type:
		v, rest, err = msgp.ReadFloat64Bytes(d.rest)
	case msgp.StrType:
		v, rest, err = msgp.ReadStringBytes(d.rest)
	case msgp.BinType:
		v, rest, err = msgp.ReadBytesBytes(d.rest, nil)
	default:
		return nil, d.wanted("key", "a plain value or an array")
	}
	if err != nil {
		return nil, d.wanted("key", "a whole value")
	}
	d.rest = rest
	return v, nil
}

// skipFields passes over n fields that are not known here; n may be negative.
func (d *decoder) skipFields(name string, n int) error {
	for range max(n, 0) {
		if err := d.skip(0); err != nil {
			return fmt.Errorf("%s: a field behind those known: %w", name, err)
		}
	}
	return nil
}

// skip passes over one value. It cannot use msgp.Skip for arrays and maps, which follows them 100,000 levels down.
func (d *decoder) skip(depth int) error {
	if depth == maxDepth {
		return fmt.Errorf("deeper than %d", maxDepth)
	}
	var n int64
	switch msgp.NextType(d.rest) {
	case msgp.ArrayType:
		size, rest, err := msgp.ReadArrayHeaderBytes(d.rest)
		if err != nil {
			return d.wanted("array", "its size")
		}
		n, d.rest = int64(size), rest
	case msgp.MapType:
		size, rest, err := msgp.ReadMapHeaderBytes(d.rest)
		if err != nil {
			return d.wanted("map", "its size")
		}
		n, d.rest = 2*int64(size), rest
	default:
		rest, err := msgp.Skip(d.rest)
		if err != nil {
			return d.wanted("value", "a whole value")
		}
		d.rest = rest
		return nil
	}
	if n > int64(len(d.rest)) {
		return fmt.Errorf("%d elements in %d bytes", n, len(d.rest))
	}
	for range n {
		if err := d.skip(depth + 1); err != nil {
			return err
		}
	}
	return nil
}
