package embedded

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
)

const (
	// kvTopic is the topic of all messages.
	kvTopic = "kv-events"
	// kvKept is the number of batches that can be had again; vLLM's default.
	kvKept = 10_000
	// kvBehind is how many batches a subscriber may be behind before it misses some, as at a PUB socket's high-water mark.
	kvBehind = 1000
)

// kvLog numbers batches, keeps the last ones, and hands each to the subscribers. All methods may be called from any
// goroutine.
type kvLog struct {
	mu          sync.Mutex
	next        uint64 // number of the next batch
	kept        []batch
	subscribers map[*subscriber]bool
}

// batch is one message's number and payload, which nobody changes.
type batch struct {
	number  uint64
	payload []byte
}

// subscriber is one connection of a PUB socket. topics are guarded by kvLog.mu.
type subscriber struct {
	topics map[string]int
	queue  chan batch
}

func newKVLog() *kvLog { return &kvLog{subscribers: map[*subscriber]bool{}} }

// add publishes a batch. It never waits: who is too far behind misses it, and can see that by its number.
func (l *kvLog) add(payload []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := batch{l.next, payload}
	l.next++
	if len(l.kept) == 2*kvKept { // what is too old is moved out now and then, not each time
		l.kept = slices.Clone(l.kept[kvKept:])
	}
	l.kept = append(l.kept, b)
	for s := range l.subscribers {
		for topic := range s.topics {
			if strings.HasPrefix(kvTopic, topic) {
				select {
				case s.queue <- b:
				default:
				}
				break
			}
		}
	}
}

// since are the batches from number from on that are kept.
func (l *kvLog) since(from uint64) []batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := l.kept[max(0, len(l.kept)-kvKept):]
	i, _ := slices.BinarySearchFunc(kept, from, func(b batch, n uint64) int {
		switch {
		case b.number < n:
			return -1
		case b.number > n:
			return 1
		}
		return 0
	})
	return slices.Clone(kept[i:])
}

func sequence(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// publish serves a peer of a PUB socket: it reads subscriptions and sends batches.
func (l *kvLog) publish(p *peer) {
	s := &subscriber{topics: map[string]int{}, queue: make(chan batch, kvBehind)}
	l.mu.Lock()
	l.subscribers[s] = true
	l.mu.Unlock()
	gone := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() {
		for {
			select {
			case <-gone:
				return
			case b := <-s.queue:
				if p.send([]byte(kvTopic), sequence(b.number), b.payload) != nil {
					return
				}
			}
		}
	})
	defer sending.Wait()
	defer close(gone)
	defer func() {
		l.mu.Lock()
		delete(l.subscribers, s)
		l.mu.Unlock()
	}()
	for {
		frames, err := p.receive()
		if err != nil {
			return
		}
		if len(frames) == 1 && len(frames[0]) > 0 {
			l.subscribe(s, frames[0])
		}
	}
}

// subscribe takes a message of a subscriber: 1 or 0, on or off, and the beginning of topics.
func (l *kvLog) subscribe(s *subscriber, frame []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	topic := string(frame[1:])
	switch frame[0] {
	case 1:
		s.topics[topic]++
	case 0:
		s.topics[topic]--
	}
	maps.DeleteFunc(s.topics, func(_ string, n int) bool { return n <= 0 })
}

// replay serves a peer of a ROUTER socket: it answers each number with the batches from there on, and then with an end.
func (l *kvLog) replay(p *peer) {
	for {
		frames, err := p.receive()
		if err != nil {
			return
		}
		if len(frames) != 2 || len(frames[1]) != 8 {
			continue
		}
		for _, b := range l.since(binary.BigEndian.Uint64(frames[1])) {
			if p.send(nil, sequence(b.number), b.payload) != nil {
				return
			}
		}
		if p.send(nil, sequence(math.MaxUint64), nil) != nil {
			return
		}
	}
}
