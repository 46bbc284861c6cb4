package world

// eventKind is what an event does. Events of one instant come in this order.
type eventKind uint8

const (
	evPass     eventKind = iota // an engine's pass, or run of quiet passes, ends
	evBegin                     // an incident begins
	evOver                      // an incident is over
	evNotice                    // operators notice a death
	evLoaded                    // an adapter is there
	evArrive                    // a request reaches its engine
	evWithdraw                  // a cancellation reaches an engine
	evRead                      // a poll reads an engine
	evCache                     // changes of a cache reach a gateway
	evFirst                     // a first token reaches the gateway
	evProgress                  // progress reaches the gateways
	evDone                      // the last token reaches the gateway
	evRefused                   // the refusal of a request that would never fit reaches the gateway
	evBroken                    // the break of a stream reaches the gateway
	evReport                    // a report, or the failure of a poll, reaches the gateway
	evGiveUp                    // a client gives up
	evPoll                      // a gateway sends a poll
	evSample                    // the load of all engines is noted
)

// endless says that such events go on for ever, whether anything happens or not.
func (k eventKind) endless() bool {
	return k == evPoll || k == evRead || k == evReport || k == evSample || k == evCache
}

// event is one entry of the heap. Events order by time, kind, who and then insertion.
type event struct {
	at   int64  // ns
	rank uint64 // kind, then who: see rankOf
	seq  uint64
	ref  uint64 // what it concerns, by kind: a flight's id, a poll, an incident
}

// rankOf makes the order among events of one instant. who must be below 2^56 and should be unique among the events of the kind.
func rankOf(k eventKind, who uint64) uint64 { return uint64(k)<<56 | who }

func (e *event) kind() eventKind { return eventKind(e.rank >> 56) }

func (e *event) who() uint64 { return e.rank & (1<<56 - 1) }

func (e *event) before(o *event) bool {
	if e.at != o.at {
		return e.at < o.at
	}
	if e.rank != o.rank {
		return e.rank < o.rank
	}
	return e.seq < o.seq
}

// heap is a binary heap of events, the earliest first.
type heap struct {
	list []event
	seq  uint64
}

func (h *heap) push(e event) {
	h.seq++
	e.seq = h.seq
	h.list = append(h.list, e)
	at := len(h.list) - 1
	for at > 0 {
		up := (at - 1) / 2
		if !e.before(&h.list[up]) {
			break
		}
		h.list[at] = h.list[up]
		at = up
	}
	h.list[at] = e
}

func (h *heap) pop() event {
	top := h.list[0]
	n := len(h.list) - 1
	last := h.list[n]
	h.list = h.list[:n]
	if n == 0 {
		return top
	}
	at := 0
	for {
		down := 2*at + 1
		if down >= n {
			break
		}
		if down+1 < n && h.list[down+1].before(&h.list[down]) {
			down++
		}
		if !h.list[down].before(&last) {
			break
		}
		h.list[at] = h.list[down]
		at = down
	}
	h.list[at] = last
	return top
}

// mix is the finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection that leaves no pattern.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// What is drawn by lot.
const (
	drawPhase uint64 = iota + 1
	drawLoss
	drawSkew
	drawSeed
)

// draw is uniform in [0, 1) for what, a and b.
func draw(seed, what, a, b uint64) float64 {
	return float64(mix(mix(mix(mix(seed)^what)^a)^b)>>11) / (1 << 53)
}
