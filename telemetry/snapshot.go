package telemetry

import (
	"time"
)

// Snapshot is what a host hands in about one endpoint: any part of it may be left out, and what is left out says
// nothing. It is plain data: one goroutine fills it in, and it must not be changed while Observe runs. The Store keeps
// no reference to its slices.
//
// Each figure is a Reading; [V] makes one that has the snapshot's time, [At] one with a time of its own. Valid values
// are finite, not negative and at most 1e15; shares are 0 to 1.
type Snapshot struct {
	// ObservedAt is the earliest local time at which the figures can have held: for a poll, the time at which it was
	// sent. The zero time means now, the time given to Observe.
	ObservedAt time.Time
	// Interval is after how long the host means to report again, for a poll that of the polls: by it a router knows how old a reading
	// becomes in good order. 0 or less = not known; it says nothing about a single figure.
	Interval time.Duration
	// Source names who reported, for receipts and logs. It has no influence on which report counts.
	Source string
	// Incarnation is the incarnation of the endpoint that reported, "" = not known. A host with several lives of one
	// endpoint drops what another than the present one has said; a Store, which holds one, does not look at it.
	Incarnation string

	// Running is the number of requests in the batch.
	Running Reading
	// Waiting is the number of requests in the engine's queue.
	Waiting Reading
	// WaitingTokens is the number of prompt tokens of the waiting requests that are not cached, in tokens.
	WaitingTokens Reading
	// DecodeTokens is the number of tokens that the running requests are still expected to generate, in tokens.
	DecodeTokens Reading
	// KVUsed is the occupied part of the KV cache, in tokens.
	KVUsed Reading
	// KVCapacity is the size of the KV cache, in tokens. Zero is a defect: no engine could serve with it.
	KVCapacity Reading
	// KVShare is the occupied share of the KV cache, 0 to 1. Where it is missing it is computed from the two above.
	KVShare Reading
	// KVOccupied says that KVUsed and KVShare count cached prefixes that can be evicted at once, too: they are upper bounds of
	// what requests hold, and are not compared with figures that are without them.
	KVOccupied bool
	// GenerationRate is the momentary output of the engine, in tokens per second. It is no capacity.
	GenerationRate Reading
	// PrefixHitRate is the share of prompt tokens that were found in the prefix cache, 0 to 1.
	PrefixHitRate Reading
	// MaxRunning is the largest batch, in requests. Zero is a defect.
	MaxRunning Reading

	// Adapters is what the engine says about adapters.
	Adapters AdapterReport
	// Health is what the engine says about itself.
	Health Health
	// Asleep says whether the engine has given its memory back and serves nobody.
	Asleep Tri
	// Epoch names the life of the engine process, for example by its start time. Another epoch means a restart. "" is
	// unknown and contradicts nothing.
	Epoch string
	// Evidence tells whether zeros can be believed.
	Evidence Evidence

	// Ranks are the data-parallel ranks of the engine, all of them, each ID once, in any order. If there are any, the
	// engine's figures are computed from theirs: counts, token counts and rates add up, KVShare is the greatest,
	// PrefixHitRate the mean. A rank that does not know a figure is left out of it: the sum is then a floor. KVUsed adds
	// only the ranks that also know their capacity, if any does, so that both sums speak of the same ranks. The age of a
	// computed figure is that of its oldest part. The snapshot's own figures count as rank 0 if Ranks has no rank 0;
	// otherwise one of them is used only if no rank reports that figure.
	Ranks []Rank
}

// Rank is one data-parallel rank of an engine: a scheduler and a KV cache of its own. The figures mean what they mean
// in Snapshot. It is plain data, with the rules of the Snapshot or State that holds it.
type Rank struct {
	// ID is the number of the rank, 0 or more. A negative or repeated ID is a defect and the rank is left out.
	ID int

	// The load figures.
	Running, Waiting, WaitingTokens, DecodeTokens Reading
	KVUsed, KVCapacity, KVShare                   Reading
	GenerationRate, PrefixHitRate, MaxRunning     Reading
}

// AdapterReport is the list of adapters that an engine knows of. The zero value says nothing, which is not an empty
// list. It is plain data, with the rules of the Snapshot or State that holds it.
type AdapterReport struct {
	// Known says that the list was reported: an adapter that is not in it is not loaded. A list with entries counts as
	// known in any case.
	Known bool
	// Adapters is the list, in no particular order. One without an ID is a defect and is left out.
	Adapters []Adapter
}

func (r *AdapterReport) known() bool { return r.Known || len(r.Adapters) > 0 }

// Adapter is one low-rank adapter on an engine. It is plain data.
type Adapter struct {
	// ID is the adapter's name.
	ID string
	// Digest tells versions of one name apart. "" is unknown.
	Digest string
	// State says where the weights are.
	State AdapterState
	// Rank is the rank of the adapter's matrices. 0 is unknown; a negative rank is a defect and becomes 0.
	Rank int
	// MemoryBytes is the device memory it takes, in bytes. 0 is unknown; a negative size is a defect and becomes 0.
	MemoryBytes int64
	// VerifiedAt is when the state was last known to be true. The zero time means the snapshot's ObservedAt, and so does
	// a time in the future.
	VerifiedAt time.Time
}

// AdapterState says where the weights of an adapter are. The zero value is unknown.
type AdapterState uint8

const (
	// AdapterUnknown says nothing.
	AdapterUnknown AdapterState = iota
	// AdapterReady is in device memory: a request can start at once.
	AdapterReady
	// AdapterLoading is on its way to device memory.
	AdapterLoading
	// AdapterCached is in the host memory of the engine: cheaper to load than from storage, not ready.
	AdapterCached
	// AdapterUnloaded is known to the engine and not in memory.
	AdapterUnloaded
)

// String returns the name in lower case, "adapter-state(N)" for a value that is none of the constants.
func (s AdapterState) String() string {
	return nameOf("adapter-state", uint8(s), "unknown", "ready", "loading", "cached", "unloaded")
}

// Health is what an engine says about itself. The zero value is unknown.
type Health uint8

const (
	// HealthUnknown says nothing.
	HealthUnknown Health = iota
	// HealthOK is an engine that says it can serve.
	HealthOK
	// HealthError is an engine that says it cannot serve.
	HealthError
	// HealthOOM is an engine that ran out of device memory.
	HealthOOM
)

// String returns the name in lower case, "health(N)" for a value that is none of the constants.
func (h Health) String() string {
	return nameOf("health", uint8(h), "unknown", "ok", "error", "oom")
}

// Tri is an answer that may be unknown. The zero value is unknown.
type Tri uint8

const (
	// TriUnknown says nothing.
	TriUnknown Tri = iota
	// TriNo is a reported no.
	TriNo
	// TriYes is a reported yes.
	TriYes
)

// String returns the name in lower case, "tri(N)" for a value that is none of the constants.
func (t Tri) String() string {
	return nameOf("tri", uint8(t), "unknown", "no", "yes")
}

// Evidence tells whether the zeros of a snapshot can be believed. The zero value is EvidenceVouched.
type Evidence uint8

const (
	// EvidenceVouched means that the host answers for the figures.
	EvidenceVouched Evidence = iota
	// EvidenceNone means that nothing in the report shows that the engine has ever taken a measurement: all of its
	// counters are zero. The first report after a start, a restart or a Clear that is all zero is then unknown; the next
	// one counts.
	EvidenceNone
)

// String returns the name in lower case, "evidence(N)" for a value that is none of the constants.
func (e Evidence) String() string {
	return nameOf("evidence", uint8(e), "vouched", "none")
}
