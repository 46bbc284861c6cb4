package kvevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/tinylib/msgp/msgp"
)

// Limits bound what one batch may hold. The zero value means the defaults; a negative bound is an error.
//
// Limits is a plain value; any number of goroutines may use one.
type Limits struct {
	// Bytes of a payload; 0 means 16 MiB.
	Bytes int
	// Events in a batch; 0 means 65,536.
	Events int
	// Blocks in all events of a batch together; 0 means 262,144. Their extra keys may have four times as many elements.
	Blocks int
	// Tokens in all events of a batch together; 0 means 4,194,304.
	Tokens int
}

// Validate joins all that is wrong with l.
func (l Limits) Validate() error {
	var errs []error
	for _, f := range [...]struct {
		name  string
		value int
	}{{"Bytes", l.Bytes}, {"Events", l.Events}, {"Blocks", l.Blocks}, {"Tokens", l.Tokens}} {
		if f.value < 0 {
			errs = append(errs, fmt.Errorf("kvevents: Limits.%s is %d, it must not be negative", f.name, f.value))
		}
	}
	return errors.Join(errs...)
}

// WithDefaults is l with its zeros replaced.
func (l Limits) WithDefaults() Limits {
	for _, f := range [...]struct {
		value *int
		or    int
	}{{&l.Bytes, 16 << 20}, {&l.Events, 1 << 16}, {&l.Blocks, 1 << 18}, {&l.Tokens, 1 << 22}} {
		if *f.value == 0 {
			*f.value = f.or
		}
	}
	return l
}

const (
	// MaxRank is the largest data-parallel rank that is believed.
	MaxRank = 1<<16 - 1

	// maxDepth bounds how deep arrays and maps may lie in each other, in fields that are skipped and in extra keys.
	maxDepth = 16
	// maxText bounds tags, media and adapter names, in bytes.
	maxText = 1024
	// maxExtra bounds the elements of one block's extra keys, with those inside of others.
	maxExtra = 256
)

// Decode reads one payload into b: a MessagePack array of time, events and, where there are ranks, the rank; each event
// an array of its tag and fields. Fields behind those known here are skipped. Anything else that is not as expected is an
// error that names the place, such as "kvevents: events[3].token_ids[7]: ...": also a tag that is not known, as what
// it stands for may be a block gone. With an error b holds no event. l is taken WithDefaults.
func Decode(b *Batch, payload []byte, l Limits) error {
	if err := l.Validate(); err != nil {
		return err
	}
	l = l.WithDefaults()
	clear(b.Events) // extra keys are no memory to be used again
	*b = Batch{Events: b.Events[:0], hashes: b.hashes[:0], tokens: b.tokens[:0]}
	if len(payload) > l.Bytes {
		return fmt.Errorf("kvevents: payload has %d bytes, more than %d", len(payload), l.Bytes)
	}
	d := decoder{rest: payload, batch: b, limits: l, extra: 4 * min(l.Blocks, math.MaxInt/4)}
	if err := d.readBatch(); err != nil {
		clear(b.Events)
		*b = Batch{Events: b.Events[:0], hashes: b.hashes[:0], tokens: b.tokens[:0]}
		return fmt.Errorf("kvevents: %w", err)
	}
	return nil
}

// decoder takes one payload apart. Its methods read one value each and say what they were to read when they cannot.
type decoder struct {
	rest   []byte
	batch  *Batch
	limits Limits
	extra  int // elements of extra keys that may come yet
}

func (d *decoder) readBatch() error {
	n, err := d.array("batch", maxFields)
	if err != nil {
		return err
	}
	if n < 2 {
		return fmt.Errorf("batch: %d fields, at least the time and the events are needed", n)
	}
	if d.batch.Time, err = d.seconds(); err != nil {
		return err
	}
	events, err := d.array("events", d.limits.Events)
	if err != nil {
		return err
	}
	for i := range events {
		if err := d.event(); err != nil {
			return fmt.Errorf("events[%d]%w", i, err)
		}
	}
	if n > 2 && !d.null() {
		rank, err := d.integer("data_parallel_rank")
		if err != nil {
			return err
		}
		if rank < 0 || rank > MaxRank {
			return fmt.Errorf("data_parallel_rank is %d, it must be in [0, %d]", rank, MaxRank)
		}
		d.batch.Rank = int(rank)
	}
	if err := d.skipFields("batch", n-3); err != nil {
		return err
	}
	if len(d.rest) > 0 {
		return fmt.Errorf("batch: %d bytes behind its end", len(d.rest))
	}
	return nil
}

// event reads one event. Its errors begin with what follows "events[i]".
func (d *decoder) event() error {
	n, err := d.array("", maxFields)
	if err != nil {
		return err
	}
	if n == 0 {
		return errors.New(": no tag")
	}
	tag, err := d.text(".tag")
	if err != nil {
		return err
	}
	// A new element keeps nothing of what its memory held before.
	d.batch.Events = append(d.batch.Events, Event{})
	e := &d.batch.Events[len(d.batch.Events)-1]
	var known int
	switch {
	case string(tag) == "BlockStored":
		e.Kind = BlockStored
		known, err = d.stored(e, n)
	case string(tag) == "BlockRemoved":
		e.Kind = BlockRemoved
		known, err = d.removed(e, n)
	case string(tag) == "AllBlocksCleared":
		e.Kind = AllBlocksCleared
		known = 1
	default:
		return fmt.Errorf(".tag: %.64q is no event known here", tag)
	}
	if err != nil {
		return fmt.Errorf(".%w", err)
	}
	return d.skipFields("", n-known)
}

// maxFields bounds the fields of a batch and of an event.
const maxFields = 64

// stored reads the fields behind the tag of a BlockStored with n fields, and says how many it knows.
func (d *decoder) stored(e *Event, n int) (int, error) {
	if n < 5 {
		return 0, fmt.Errorf("block_size: missing, BlockStored has %d fields", n)
	}
	var err error
	if e.Hashes, err = d.hashes(); err != nil {
		return 0, err
	}
	if !d.null() {
		if e.Parent, err = d.hash("parent_block_hash"); err != nil {
			return 0, err
		}
		e.HasParent = true
	}
	if e.Tokens, err = d.tokens(); err != nil {
		return 0, err
	}
	if e.BlockTokens, err = d.integer("block_size"); err != nil {
		return 0, err
	}
	if n > 5 && !d.null() {
		if e.LoRA.ID, err = d.integer("lora_id"); err != nil {
			return 0, err
		}
		e.LoRA.HasID = true
	}
	if n > 6 {
		if e.Medium, _, err = d.name("medium"); err != nil {
			return 0, err
		}
	}
	if n > 7 {
		if e.LoRA.Name, e.LoRA.HasName, err = d.name("lora_name"); err != nil {
			return 0, err
		}
	}
	if n > 8 && !d.null() {
		if e.Extra, err = d.extraKeys(len(e.Hashes)); err != nil {
			return 0, err
		}
	}
	return 9, nil
}

// removed does so for a BlockRemoved.
func (d *decoder) removed(e *Event, n int) (int, error) {
	if n < 2 {
		return 0, errors.New("block_hashes: missing")
	}
	var err error
	if e.Hashes, err = d.hashes(); err != nil {
		return 0, err
	}
	if n > 2 {
		if e.Medium, _, err = d.name("medium"); err != nil {
			return 0, err
		}
	}
	return 3, nil
}

func (d *decoder) hashes() ([]BlockHash, error) {
	n, err := d.array("block_hashes", d.limits.Blocks-len(d.batch.hashes))
	if err != nil {
		return nil, err
	}
	first := len(d.batch.hashes)
	for i := range n {
		h, err := d.hash("")
		if err != nil {
			return nil, fmt.Errorf("block_hashes[%d]%w", i, err)
		}
		d.batch.hashes = append(d.batch.hashes, h)
	}
	return d.batch.hashes[first:len(d.batch.hashes):len(d.batch.hashes)], nil
}

func (d *decoder) hash(name string) (BlockHash, error) {
	switch msgp.NextType(d.rest) {
	case msgp.IntType:
		v, rest, err := msgp.ReadInt64Bytes(d.rest)
		if err == nil {
			d.rest = rest
			return IntHash(v), nil
		}
	case msgp.UintType:
		v, rest, err := msgp.ReadUint64Bytes(d.rest)
		if err == nil {
			d.rest = rest
			return UintHash(v), nil
		}
	case msgp.BinType:
		v, rest, err := msgp.ReadBytesZC(d.rest)
		if err == nil {
			d.rest = rest
			return BytesHash(v), nil
		}
	}
	return BlockHash{}, d.wanted(name, "an integer or a byte string")
}

func (d *decoder) tokens() ([]uint32, error) {
	n, err := d.array("token_ids", d.limits.Tokens-len(d.batch.tokens))
	if err != nil {
		return nil, err
	}
	first := len(d.batch.tokens)
	d.batch.tokens = slices.Grow(d.batch.tokens, n)
	for i := range n {
		v, size := shortUint(d.rest)
		if size == 0 {
			if v, size, err = d.longUint(); err != nil {
				return nil, fmt.Errorf("token_ids[%d]%w", i, err)
			}
		}
		d.rest = d.rest[size:]
		d.batch.tokens = append(d.batch.tokens, v)
	}
	return d.batch.tokens[first:len(d.batch.tokens):len(d.batch.tokens)], nil
}

// shortUint reads a token in one of the forms that tokens come in: positive fixint, uint 8, 16 and 32. Almost all that a
// payload holds are tokens. size is what it takes in bytes, 0 for another form.
func shortUint(b []byte) (v uint32, size int) {
	if len(b) < 1 {
		return 0, 0
	}
	switch c := b[0]; {
	case c < 0x80:
		return uint32(c), 1
	case c == 0xcd && len(b) >= 3:
		return uint32(binary.BigEndian.Uint16(b[1:])), 3
	case c == 0xce && len(b) >= 5:
		return binary.BigEndian.Uint32(b[1:]), 5
	case c == 0xcc && len(b) >= 2:
		return uint32(b[1]), 2
	}
	return 0, 0
}

// longUint reads a token in any form.
func (d *decoder) longUint() (v uint32, size int, err error) {
	if t := msgp.NextType(d.rest); t != msgp.IntType && t != msgp.UintType {
		return 0, 0, d.wanted("", "an integer")
	}
	v, rest, err := msgp.ReadUint32Bytes(d.rest)
	if err != nil {
		return 0, 0, d.wanted("", "an integer in [0, 2^32)")
	}
	return v, len(d.rest) - len(rest), nil
}

// array reads the head of an array. Its elements, of a byte at least, must be there.
func (d *decoder) array(name string, most int) (int, error) {
	n, rest, err := msgp.ReadArrayHeaderBytes(d.rest)
	if err != nil {
		return 0, d.wanted(name, "an array")
	}
	if int64(n) > int64(most) {
		return 0, fmt.Errorf("%s: %d elements, more than %d", name, n, most)
	}
	if int64(n) > int64(len(rest)) {
		return 0, fmt.Errorf("%s: %d elements in %d bytes", name, n, len(rest))
	}
	d.rest = rest
	return int(n), nil
}

// null reads a nil and reports whether there was one.
func (d *decoder) null() bool {
	if msgp.IsNil(d.rest) {
		d.rest = d.rest[1:]
		return true
	}
	return false
}

func (d *decoder) integer(name string) (int64, error) {
	if t := msgp.NextType(d.rest); t != msgp.IntType && t != msgp.UintType {
		return 0, d.wanted(name, "an integer")
	}
	v, rest, err := msgp.ReadInt64Bytes(d.rest)
	if err != nil {
		return 0, d.wanted(name, "an integer below 2^63")
	}
	d.rest = rest
	return v, nil
}

func (d *decoder) seconds() (float64, error) {
	var v float64
	var rest []byte
	var err error
	switch msgp.NextType(d.rest) {
	case msgp.Float64Type, msgp.Float32Type:
		v, rest, err = msgp.ReadFloat64Bytes(d.rest)
	case msgp.IntType, msgp.UintType:
		var i int64
		i, rest, err = msgp.ReadInt64Bytes(d.rest)
		v = float64(i)
	default:
		return 0, d.wanted("ts", "a number")
	}
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, d.wanted("ts", "a finite number")
	}
	d.rest = rest
	return v, nil
}

// text reads a string, without copying it.
func (d *decoder) text(name string) ([]byte, error) {
	v, rest, err := msgp.ReadStringZC(d.rest)
	if err != nil {
		return nil, d.wanted(name, "a string")
	}
	if len(v) > maxText {
		return nil, fmt.Errorf("%s: %d bytes, more than %d", name, len(v), maxText)
	}
	d.rest = rest
	return v, nil
}

// name reads a string or nil, and reports whether it was a string.
func (d *decoder) name(name string) (string, bool, error) {
	if d.null() {
		return "", false, nil
	}
	v, err := d.text(name)
	return string(v), err == nil, err
}

// wanted says that what comes next is not what was expected.
func (d *decoder) wanted(name, what string) error {
	if len(d.rest) == 0 {
		return fmt.Errorf("%s: the payload ends where %s belongs", name, what)
	}
	return fmt.Errorf("%s: not %s but %s (byte 0x%02x)", name, what, msgp.NextType(d.rest), d.rest[0])
}
