package embedded

import (
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/tinylib/msgp/msgp"

	"github.com/isobar-go/isobar/internal/sim"
)

// kvEvents makes of the changes of an engine's cache what vLLM would publish about them. All but close and shut are called
// with Engine.mu held; a nil one does nothing.
type kvEvents struct {
	events, replays *socket
	log             *kvLog
	blockSize       int64
	// known are the blocks of the requests inside the engine, by hash: only they can be stored.
	known map[uint64]knownBlock
	// told are the blocks that were published as stored, and not as gone since.
	told    map[uint64]bool
	changes []sim.KVEvent
}

// knownBlock is what the engine's model does not keep of a block.
type knownBlock struct {
	tokens []uint32
	salt   string // of a first block
	users  int    // requests that have it
}

func newKVEvents(cfg Config) (*kvEvents, error) {
	log := newKVLog()
	events, err := listenKV(zmq4.Pub, "Config.KVAddr", cfg.KVAddr, log.publish)
	if err != nil {
		return nil, err
	}
	replays, err := listenKV(zmq4.Router, "Config.KVReplayAddr", cfg.KVReplayAddr, log.replay)
	if err != nil {
		events.close()
		return nil, err
	}
	return &kvEvents{
		events: events, replays: replays, log: log, blockSize: cfg.Profile.BlockSize,
		known: map[uint64]knownBlock{}, told: map[uint64]bool{},
	}, nil
}

// shut takes no more subscribers.
func (k *kvEvents) shut() {
	if k != nil {
		k.events.shut()
		k.replays.shut()
	}
}

// close breaks off all connections, and returns when nothing runs any more.
func (k *kvEvents) close() {
	if k != nil {
		k.events.close()
		k.replays.close()
	}
}

// know takes the blocks of a request in, for as long as it is in the engine.
func (k *kvEvents) know(j *job) {
	if k == nil {
		return
	}
	for i, h := range j.request.Blocks {
		b, ok := k.known[h]
		if !ok {
			from := int64(i) * k.blockSize
			b.tokens = j.numbers[from : from+k.blockSize]
			if i == 0 {
				b.salt = j.salt
			}
		}
		b.users++
		k.known[h] = b
	}
}

// forget undoes know.
func (k *kvEvents) forget(j *job) {
	if k == nil {
		return
	}
	for _, h := range j.request.Blocks {
		b := k.known[h]
		if b.users--; b.users == 0 {
			delete(k.known, h)
			continue
		}
		k.known[h] = b
	}
}

// take publishes what has changed in the cache since the last call, as one batch; nothing if nothing has.
//
// A block behind one that is not in the cache cannot be found and is left out, until it is stored anew. That happens where
// the cache was cleared under a running request, and where the model keeps one of two equal blocks and loses that first.
func (k *kvEvents) take(e *sim.Engine) {
	if k == nil {
		return
	}
	k.changes = e.KVEvents(k.changes[:0])
	var out kvBatch
	for _, c := range k.changes {
		switch c.Kind {
		case sim.KVStored:
			if c.Parent == 0 || k.told[c.Parent] {
				k.told[c.Hash] = true
				out.stored(c, k.known[c.Hash])
			}
		case sim.KVRemoved:
			if k.told[c.Hash] {
				delete(k.told, c.Hash)
				out.removed(c.Hash)
			}
		case sim.KVCleared:
			clear(k.told)
			out.cleared()
		}
	}
	if payload := out.payload(time.Now(), k.blockSize); payload != nil {
		k.log.add(payload)
	}
}

// kvBatch is a batch in the making. It joins blocks that follow each other into one event, as engines do.
type kvBatch struct {
	list []kvEvent
}

// kvEvent is one event: of stored blocks the tokens, of a first one the salt, and the block before them.
type kvEvent struct {
	kind   sim.KVEventKind
	hashes []uint64
	parent uint64 // 0: none
	tokens []uint32
	salt   string
}

func (b *kvBatch) stored(c sim.KVEvent, block knownBlock) {
	if n := len(b.list); n > 0 && c.Parent != 0 {
		if last := &b.list[n-1]; last.kind == sim.KVStored && last.hashes[len(last.hashes)-1] == c.Parent {
			last.hashes = append(last.hashes, c.Hash)
			last.tokens = append(last.tokens, block.tokens...)
			return
		}
	}
	b.list = append(b.list, kvEvent{
		kind: sim.KVStored, hashes: []uint64{c.Hash}, parent: c.Parent, tokens: append([]uint32(nil), block.tokens...), salt: block.salt,
	})
}

func (b *kvBatch) removed(hash uint64) {
	if n := len(b.list); n > 0 && b.list[n-1].kind == sim.KVRemoved {
		b.list[n-1].hashes = append(b.list[n-1].hashes, hash)
		return
	}
	b.list = append(b.list, kvEvent{kind: sim.KVRemoved, hashes: []uint64{hash}})
}

func (b *kvBatch) cleared() { b.list = append(b.list, kvEvent{kind: sim.KVCleared}) }

// kvMedium is where vLLM says that blocks in the fast memory are.
const kvMedium = "GPU"

// payload writes the batch as vLLM does: an array of time, events and data-parallel rank, each event an array of its tag and
// its fields in their order. nil means that there is none.
func (b *kvBatch) payload(now time.Time, blockSize int64) []byte {
	if len(b.list) == 0 {
		return nil
	}
	out := msgp.AppendArrayHeader(nil, 3)
	out = msgp.AppendFloat64(out, float64(now.UnixMicro())/1e6)
	out = msgp.AppendArrayHeader(out, uint32(len(b.list)))
	for i := range b.list {
		switch e := &b.list[i]; e.kind {
		case sim.KVStored:
			out = e.appendStored(out, blockSize)
		case sim.KVRemoved:
			out = msgp.AppendString(msgp.AppendArrayHeader(out, 3), "BlockRemoved")
			out = msgp.AppendString(appendHashes(out, e.hashes), kvMedium)
		case sim.KVCleared:
			out = msgp.AppendString(msgp.AppendArrayHeader(out, 1), "AllBlocksCleared")
		}
	}
	return msgp.AppendInt(out, 0)
}

// appendStored writes hashes, parent, token ids, block size, adapter id, medium, adapter name and extra keys: those of each
// block, which the salt is in the first one of a prompt.
func (e *kvEvent) appendStored(out []byte, blockSize int64) []byte {
	out = msgp.AppendString(msgp.AppendArrayHeader(out, 9), "BlockStored")
	out = appendHashes(out, e.hashes)
	if e.parent == 0 {
		out = msgp.AppendNil(out)
	} else {
		out = msgp.AppendUint64(out, e.parent)
	}
	out = msgp.AppendArrayHeader(out, uint32(len(e.tokens)))
	for _, t := range e.tokens {
		out = msgp.AppendUint32(out, t)
	}
	out = msgp.AppendInt64(out, blockSize)
	out = msgp.AppendNil(out)
	out = msgp.AppendString(out, kvMedium)
	out = msgp.AppendNil(out)
	if e.salt == "" {
		return msgp.AppendNil(out)
	}
	out = msgp.AppendArrayHeader(out, uint32(len(e.hashes)))
	out = msgp.AppendString(msgp.AppendArrayHeader(out, 1), e.salt)
	for range len(e.hashes) - 1 {
		out = msgp.AppendNil(out)
	}
	return out
}

func appendHashes(out []byte, hashes []uint64) []byte {
	out = msgp.AppendArrayHeader(out, uint32(len(hashes)))
	for _, h := range hashes {
		out = msgp.AppendUint64(out, h)
	}
	return out
}
