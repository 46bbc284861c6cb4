package sim

// Request is one request as an engine sees it. It is a plain value.
type Request struct {
	// ID names the request. No two requests inside an engine have the same.
	ID uint64
	// Blocks are the chained hashes of the full blocks of the prompt, in order, and, where the host knows them, of what
	// the output will fill after it. A prefix of the sequence may be left out at the end, never at the start: blocks
	// without a hash are not cached. At most (PromptTokens+OutputTokens)/BlockSize. Where the low 4 bits of neighbours count
	// up, lookups are faster; it changes nothing else. The engine keeps the slice and only reads it; the host must not change
	// it before the request has ended.
	Blocks []uint64
	// PromptTokens is the length of the prompt. At least 1.
	PromptTokens int64
	// OutputTokens is the number of tokens to generate. At least 1.
	OutputTokens int64
}

// place is where a request is inside the engine.
type place uint8

const (
	waiting place = iota
	running
	gone // finished or cancelled
)

// request is the engine's own record of a Request.
type request struct {
	Request
	place     place
	prev      *request // neighbours in the waiting queue
	next      *request
	blocks    []int32
	named     int   // leading blocks whose hash has been offered to the index
	computed  int64 // tokens whose KV is in blocks, the open pass not counted
	generated int64
	chunk     int64 // new tokens in the open pass
	starts    int   // admissions so far
}

// known returns the tokens whose KV is needed before the next one can be generated.
func (r *request) known() int64 { return r.PromptTokens + r.generated }

// queue is a doubly linked list of waiting requests: FIFO, with a way back to the front and removal from the middle.
type queue struct {
	head   *request
	tail   *request
	n      int
	tokens int64 // known tokens of all
}

func (q *queue) pushBack(r *request) {
	r.prev, r.next = q.tail, nil
	if q.tail == nil {
		q.head = r
	} else {
		q.tail.next = r
	}
	q.tail = r
	q.n++
	q.tokens += r.known()
}

func (q *queue) pushFront(r *request) {
	r.prev, r.next = nil, q.head
	if q.head == nil {
		q.tail = r
	} else {
		q.head.prev = r
	}
	q.head = r
	q.n++
	q.tokens += r.known()
}

func (q *queue) remove(r *request) {
	if r.prev == nil {
		q.head = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		q.tail = r.prev
	} else {
		r.next.prev = r.prev
	}
	r.prev, r.next = nil, nil
	q.n--
	q.tokens -= r.known()
}
