package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zeromq/zmq4"
)

// Source is where one stream of events is published. A Source is a plain value.
type Source struct {
	// Address of the engine's PUB socket: tcp://host:port or ipc://path. With data-parallel ranks, vLLM and SGLang give
	// each rank the configured port plus its number.
	Address string
	// Replay is the address of the ROUTER socket that sends batches again; empty for none. Without it, what is known is
	// given up at each gap and each time the connection breaks.
	Replay string
}

// SubscriberConfig says how a Subscriber listens. A SubscriberConfig is a plain value.
type SubscriberConfig struct {
	// Sources are the streams, in the order of the Applier's; as many as its Config.Sources.
	Sources []Source
	// Topic is what the topics of messages must begin with; empty for all.
	Topic string
	// Timeout bounds a connection's set-up, and each wait for a message of a replay. 0 means 5 s.
	Timeout time.Duration
	// Backoff is the mean wait before the second try to connect; it doubles with each further one until MaxBackoff, and
	// is drawn from half to one and a half times that. 0 means 100 ms.
	Backoff time.Duration
	// MaxBackoff bounds the mean wait; 0 means 10 s. It must not be below Backoff.
	MaxBackoff time.Duration
	// Dial makes connections, such as with TLS; network is tcp or unix. nil means net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// OnError hears of every connection that could not be made or broke, every batch that was no good and every replay that
	// did not help; err names the address. It is called from the goroutine of the source, which waits for it. nil
	// ignores them.
	OnError func(source int, err error)
}

// Validate joins all that is wrong with c.
func (c SubscriberConfig) Validate() error {
	var errs []error
	say := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("kvevents: SubscriberConfig."+format, args...))
	}
	if len(c.Sources) == 0 {
		say("Sources is empty")
	}
	for i, s := range c.Sources {
		if _, _, err := splitAddress(s.Address); err != nil {
			say("Sources[%d].Address: %w", i, err)
		}
		if s.Replay == "" {
			continue
		}
		if _, _, err := splitAddress(s.Replay); err != nil {
			say("Sources[%d].Replay: %w", i, err)
		}
	}
	for _, f := range [...]struct {
		name  string
		value time.Duration
	}{{"Timeout", c.Timeout}, {"Backoff", c.Backoff}, {"MaxBackoff", c.MaxBackoff}} {
		if f.value < 0 {
			say("%s is %v, it must not be negative", f.name, f.value)
		}
	}
	if d := c.WithDefaults(); d.MaxBackoff < d.Backoff {
		say("MaxBackoff is %v, it must not be below Backoff, which is %v", d.MaxBackoff, d.Backoff)
	}
	return errors.Join(errs...)
}

// WithDefaults is c with its zeros replaced.
func (c SubscriberConfig) WithDefaults() SubscriberConfig {
	for _, f := range [...]struct {
		value *time.Duration
		or    time.Duration
	}{{&c.Timeout, 5 * time.Second}, {&c.Backoff, 100 * time.Millisecond}, {&c.MaxBackoff, 10 * time.Second}} {
		if *f.value == 0 {
			*f.value = f.or
		}
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	if c.OnError == nil {
		c.OnError = func(int, error) {}
	}
	return c
}

// Subscriber listens to the ZeroMQ sockets of one endpoint and delivers to its Applier. All its methods may be called from
// any number of goroutines.
type Subscriber struct {
	cfg     SubscriberConfig
	applier *Applier
	running atomic.Bool

	messages, filtered, malformed, connects, failures, replays, healed atomic.Int64
	connected                                                          atomic.Int64
}

// SubscriberStats are counts since the Subscriber was made, and how many sources are connected now. It is a plain value.
type SubscriberStats struct {
	// Messages received; of them Filtered had another topic and Malformed were not of three frames or had no sequence number.
	Messages, Filtered, Malformed int64
	// Connects that succeeded, and Failures: connections that could not be made or broke.
	Connects, Failures int64
	// Replays that were asked for, and how many Healed: all was known again after them.
	Replays, Healed int64
	// Connected sources.
	Connected int64
}

// NewSubscriber makes a Subscriber that delivers to a.
func NewSubscriber(a *Applier, cfg SubscriberConfig) (*Subscriber, error) {
	if a == nil {
		return nil, errors.New("kvevents: the Applier of a Subscriber is nil")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if n := len(a.sources); n != len(cfg.Sources) {
		return nil, fmt.Errorf("kvevents: SubscriberConfig.Sources has %d, the Applier's Config.Sources is %d", len(cfg.Sources), n)
	}
	cfg.Sources = append([]Source(nil), cfg.Sources...)
	return &Subscriber{cfg: cfg.WithDefaults(), applier: a}, nil
}

// Stats gives the figures.
func (s *Subscriber) Stats() SubscriberStats {
	return SubscriberStats{
		Messages: s.messages.Load(), Filtered: s.filtered.Load(), Malformed: s.malformed.Load(),
		Connects: s.connects.Load(), Failures: s.failures.Load(),
		Replays: s.replays.Load(), Healed: s.healed.Load(),
		Connected: s.connected.Load(),
	}
}

// Run listens until ctx ends, and returns its error. At the end nothing is known of the sources any longer, since nobody
// would notice that blocks are gone. A Subscriber runs once at a time.
func (s *Subscriber) Run(ctx context.Context) error {
	if !s.running.CompareAndSwap(false, true) {
		return errors.New("kvevents: the Subscriber is running already")
	}
	defer s.running.Store(false)
	var group sync.WaitGroup
	for i := range s.cfg.Sources {
		group.Go(func() { s.follow(ctx, i) })
	}
	group.Wait()
	return ctx.Err()
}

// follow keeps one source connected.
func (s *Subscriber) follow(ctx context.Context, i int) {
	defer func() { s.report(i, s.applier.Lost(i)) }()
	wait := s.cfg.Backoff
	for ctx.Err() == nil {
		heard, err := s.listen(ctx, i)
		if ctx.Err() != nil {
			return
		}
		s.failures.Add(1)
		s.report(i, err)
		if heard {
			wait = s.cfg.Backoff
		}
		if !sleep(ctx, wait/2+rand.N(wait)) {
			return
		}
		wait = min(2*wait, s.cfg.MaxBackoff)
	}
}

// report hands on what went wrong, if anything.
func (s *Subscriber) report(i int, err error) {
	if err != nil {
		s.cfg.OnError(i, fmt.Errorf("kvevents: %s: %w", s.cfg.Sources[i].Address, err))
	}
}

// sleep waits and reports true, or false where ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// connect opens a connection that is closed when ctx ends. stop closes it.
func (s *Subscriber) connect(ctx context.Context, address string, kind zmq4.SocketType) (w *wire, stop func(), err error) {
	network, addr, err := splitAddress(address)
	if err != nil {
		return nil, nil, err
	}
	dialing, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	c, err := s.cfg.Dial(dialing, network, addr)
	if err != nil {
		return nil, nil, err
	}
	release := context.AfterFunc(ctx, func() { c.Close() })
	stop = func() {
		release()
		c.Close()
	}
	// The topic, the number and the framing come on top of the payload.
	if w, err = open(c, kind, s.applier.cfg.Limits.Bytes+1<<16, s.cfg.Timeout); err != nil {
		stop()
		return nil, nil, err
	}
	return w, stop, nil
}

// listen follows a source over one connection, until that breaks. It says whether any message came.
func (s *Subscriber) listen(ctx context.Context, i int) (heard bool, err error) {
	w, stop, err := s.connect(ctx, s.cfg.Sources[i].Address, zmq4.Sub)
	if err != nil {
		return false, err
	}
	defer stop()
	if err := w.send(s.cfg.Timeout, append([]byte{1}, s.cfg.Topic...)); err != nil {
		return false, err
	}
	s.connects.Add(1)
	s.connected.Add(1)
	defer s.connected.Add(-1)
	// While nobody listens blocks may go, and the engine may be another one when somebody listens again.
	defer func() { s.report(i, s.pause(i)) }()
	if s.cfg.Sources[i].Replay != "" {
		// What was published before the subscription took effect.
		s.catchUp(ctx, i)
	}
	for {
		frames, err := w.receive(0)
		if err != nil {
			return heard, err
		}
		heard = true
		s.messages.Add(1)
		topic, seq, payload, err := parseLive(frames)
		if err != nil {
			s.malformed.Add(1)
			s.report(i, errors.Join(err, s.applier.Lost(i)))
			continue
		}
		if !strings.HasPrefix(topic, s.cfg.Topic) {
			s.filtered.Add(1)
			continue
		}
		if s.cfg.Sources[i].Replay != "" {
			if last, known := s.applier.Position(i); known && seq > last+1 {
				s.catchUp(ctx, i)
			}
		}
		s.report(i, s.applier.Apply(i, seq, payload))
	}
}

// pause is what a broken connection means: suspended where a replay can tell what happened meanwhile, else lost.
func (s *Subscriber) pause(i int) error {
	if s.cfg.Sources[i].Replay == "" {
		return s.applier.Lost(i)
	}
	return s.applier.Suspend(i)
}

// catchUp asks for batches that were missed. Where they do not continue what is known, that is given up, and what the engine
// can still send is taken as a beginning.
func (s *Subscriber) catchUp(ctx context.Context, i int) {
	s.report(i, s.applier.Suspend(i))
	err := s.replay(ctx, i)
	if errors.Is(err, ErrDiscontinuous) {
		s.report(i, err)
		s.report(i, s.applier.Lost(i))
		err = s.replay(ctx, i)
	}
	if err != nil {
		s.report(i, fmt.Errorf("replay from %s: %w", s.cfg.Sources[i].Replay, err))
	} else {
		s.healed.Add(1)
	}
	s.report(i, s.applier.Resume(i))
}

// replay asks once, from the position of the Applier on.
func (s *Subscriber) replay(ctx context.Context, i int) error {
	s.replays.Add(1)
	w, stop, err := s.connect(ctx, s.cfg.Sources[i].Replay, zmq4.Dealer)
	if err != nil {
		return err
	}
	defer stop()
	from, known := s.applier.Position(i)
	// The empty frame stands where a REQ socket would put it.
	if err := w.send(s.cfg.Timeout, nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return err
	}
	for n := range maxReplay {
		frames, err := w.receive(s.cfg.Timeout)
		if err != nil {
			return err
		}
		seq, payload, end, err := parseReplayed(frames)
		if err != nil {
			return err
		}
		if end && known && n == 0 {
			return fmt.Errorf("%w: the engine has no batch %d", ErrDiscontinuous, from)
		}
		if end {
			return nil
		}
		if err := s.applier.Replay(i, seq, payload); err != nil {
			if errors.Is(err, ErrDiscontinuous) {
				return err
			}
			s.report(i, err)
		}
	}
	return fmt.Errorf("it does not end after %d batches", maxReplay)
}

// maxReplay bounds the batches of one replay, far above what engines keep.
const maxReplay = 1 << 18
