package kvevents_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/telemetry/kvevents"
)

// publisher is the outside of an engine: a PUB socket and, where there is one, a ROUTER socket that sends batches again.
type publisher struct {
	t       *testing.T
	pub     zmq4.Socket
	router  zmq4.Socket
	address string
	replay  string
	done    sync.WaitGroup

	mu  sync.Mutex
	log [][]byte // by sequence number; nil: no longer there
}

// freePort is an address of this machine that nobody listens at.
func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return "tcp://" + l.Addr().String()
}

func quiet() zmq4.Option { return zmq4.WithLogger(log.New(io.Discard, "", 0)) }

// newPublisher has made noted before anybody can listen: a listener that waits for the address asks for them at once.
func newPublisher(t *testing.T, address, replay string, noted ...[]byte) *publisher {
	p := &publisher{t: t, address: address, replay: replay, log: noted, pub: zmq4.NewPub(context.Background(), quiet())}
	if replay != "" {
		p.router = zmq4.NewRouter(context.Background(), quiet())
		require.NoError(t, p.router.Listen(replay))
		p.done.Go(p.serve)
	}
	require.NoError(t, p.pub.Listen(address))
	return p
}

// serve answers replay requests as vLLM does.
func (p *publisher) serve() {
	for {
		msg, err := p.router.Recv()
		if err != nil {
			return
		}
		if len(msg.Frames) != 3 || len(msg.Frames[2]) != 8 {
			continue
		}
		from := binary.BigEndian.Uint64(msg.Frames[2])
		p.mu.Lock()
		held := slices.Clone(p.log)
		p.mu.Unlock()
		for seq, payload := range held {
			if uint64(seq) >= from && payload != nil {
				_ = p.router.Send(zmq4.NewMsgFrom(msg.Frames[0], nil, seqFrame(uint64(seq)), payload))
			}
		}
		_ = p.router.Send(zmq4.NewMsgFrom(msg.Frames[0], nil, seqFrame(1<<64-1), nil))
	}
}

func seqFrame(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// note makes a batch that is not published, and returns its number.
func (p *publisher) note(payload []byte) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = append(p.log, payload)
	return uint64(len(p.log) - 1)
}

func (p *publisher) publish(payload []byte) {
	p.send([]byte("kv-events"), seqFrame(p.note(payload)), payload)
}

func (p *publisher) send(frames ...[]byte) {
	require.NoError(p.t, p.pub.Send(zmq4.NewMsgFrom(frames...)))
}

// subscribed waits until somebody listens: what is published before is lost.
func (p *publisher) subscribed() {
	p.t.Helper()
	eventually(p.t, func() bool { return len(p.pub.(zmq4.Topics).Topics()) > 0 }, "a subscription")
}

func (p *publisher) close() {
	p.pub.Close()
	if p.router != nil {
		p.router.Close()
	}
	p.done.Wait()
}

func eventually(t *testing.T, done func() bool, what string) {
	t.Helper()
	require.Eventually(t, done, 10*time.Second, 2*time.Millisecond, what)
}

// listener is a running Subscriber with its Applier and index.
type listener struct {
	*index
	t    *testing.T
	a    *kvevents.Applier
	s    *kvevents.Subscriber
	base prefix.Scope
	stop func()

	lock   sync.Mutex
	errors []string
}

func listen(t *testing.T, sources ...kvevents.Source) *listener {
	return listenWith(t, func(*kvevents.SubscriberConfig) {}, sources...)
}

func listenWith(t *testing.T, change func(*kvevents.SubscriberConfig), sources ...kvevents.Source) *listener {
	a, x := applier(t, func(c *kvevents.Config) { c.Sources = len(sources); c.Limits.Bytes = 1 << 16 })
	l := &listener{index: x, t: t, a: a, base: scope(t, prefix.Parts{})}
	var err error
	cfg := kvevents.SubscriberConfig{
		Sources: sources, Topic: "kv-", Backoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond, Timeout: 2 * time.Second,
		OnError: func(i int, err error) {
			l.lock.Lock()
			defer l.lock.Unlock()
			l.errors = append(l.errors, fmt.Sprint(i, ": ", err))
		},
	}
	change(&cfg)
	l.s, err = kvevents.NewSubscriber(a, cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- l.s.Run(ctx) }()
	l.stop = sync.OnceFunc(func() {
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
	t.Cleanup(l.stop)
	return l
}

func (l *listener) waits(id uint32, want int) {
	l.t.Helper()
	eventually(l.t, func() bool { return l.blocks(l.t, l.base, span(id, 0, 8)) == want }, fmt.Sprintf("%d blocks of prompt %d", want, id))
}

func (l *listener) heard(part string) bool {
	l.lock.Lock()
	defer l.lock.Unlock()
	return slices.ContainsFunc(l.errors, func(s string) bool { return strings.Contains(s, part) })
}

// Without a replay each loss ends what was known, and what follows counts.
func TestSubscriber(t *testing.T) {
	p := newPublisher(t, freePort(t), "")
	defer p.close()
	l := listen(t, kvevents.Source{Address: p.address})
	p.subscribed()
	p.send([]byte("other"), seqFrame(7), []byte("not for us"))
	p.publish(batch(1, 0, stored(nil, span(1, 0, 2), 10, 11)))
	l.waits(1, 2)
	p.publish(batch(2, 0, stored(11, span(1, 2, 3), 12), removed(12)))
	p.publish(batch(3, 0, stored(11, span(1, 2, 3), 13)))
	l.waits(1, 3)
	require.Zero(t, l.a.Stats().Losses)

	p.note(batch(4, 0, removed(11))) // a gap
	p.publish(batch(5, 0, stored(nil, span(2, 0, 1), 20)))
	l.waits(2, 1)
	require.Equal(t, 0, l.blocks(t, l.base, span(1, 0, 8)))
	require.EqualValues(t, 1, l.a.Stats().Gaps)

	p.publish([]byte("garbage"))
	l.waits(2, 0)
	p.publish(batch(7, 0, stored(nil, span(3, 0, 2), 30, 31)))
	l.waits(3, 2)
	p.send([]byte("kv-events"), []byte("no number"))
	l.waits(3, 0)
	p.publish(batch(8, 0, stored(nil, span(3, 0, 2), 30, 31)))
	l.waits(3, 2)
	p.send([]byte("kv-events"), seqFrame(9), make([]byte, 1<<18))
	l.waits(3, 0)
	eventually(t, func() bool { return l.s.Stats().Connects >= 2 }, "a new connection after too large a message")
	require.True(t, l.heard("a message of more than"))
	require.True(t, l.heard("not a batch"))
	require.True(t, l.heard(p.address))

	p.subscribed()
	eventually(t, func() bool { return l.s.Stats().Connected == 1 }, "connected")
	// The old subscription may still be what was seen: publish until one arrives.
	eventually(t, func() bool {
		p.publish(batch(10, 0, stored(nil, span(4, 0, 1), 40)))
		return l.blocks(t, l.base, span(4, 0, 1)) == 1
	}, "it goes on")
	l.stop()
	require.Equal(t, 0, l.blocks(t, l.base, span(4, 0, 1)), "nobody listens any more")
	require.Zero(t, l.a.Stats().Known)
	s := l.s.Stats()
	require.Equal(t, []int64{0, 1, 0}, []int64{s.Connected, s.Malformed, s.Replays})
	require.NoError(t, kvevents.Check(l.a))
}

// An engine that is started again has nothing of what the one before had.
func TestSubscriberRestart(t *testing.T) {
	address := freePort(t)
	p := newPublisher(t, address, "")
	l := listen(t, kvevents.Source{Address: address})
	p.subscribed()
	for i := range uint32(3) {
		p.publish(batch(float64(i), 0, stored(nil, span(i, 0, 2), 10*i, 10*i+1)))
	}
	l.waits(2, 2)
	p.close()
	l.waits(2, 0)
	require.Equal(t, 0, l.blocks(t, l.base, span(1, 0, 2)))
	p = newPublisher(t, address, "")
	defer p.close()
	p.subscribed()
	p.publish(batch(9, 0, stored(nil, span(5, 0, 2), 50, 51)))
	l.waits(5, 2)
	require.Equal(t, 0, l.blocks(t, l.base, span(1, 0, 2)))
	require.Equal(t, 0, l.blocks(t, l.base, span(2, 0, 2)))
	require.Positive(t, l.s.Stats().Failures)
}

// With a replay, what was published before somebody listened and what was lost on the way is not missed.
func TestSubscriberReplay(t *testing.T) {
	address, replay := freePort(t), freePort(t)
	p := newPublisher(t, address, replay,
		batch(1, 0, stored(nil, span(1, 0, 2), 10, 11)), batch(2, 0, stored(11, span(1, 2, 3), 12)))
	l := listen(t, kvevents.Source{Address: address, Replay: replay})
	l.waits(1, 3)
	p.subscribed()
	p.note(batch(3, 0, removed(12), stored(nil, span(2, 0, 1), 20)))
	p.note(batch(4, 0, stored(20, span(2, 1, 2), 21)))
	p.publish(batch(5, 0, stored(21, span(2, 2, 3), 22)))
	l.waits(2, 3)
	require.Equal(t, 2, l.blocks(t, l.base, span(1, 0, 8)))
	s, u := l.a.Stats(), l.s.Stats()
	require.Equal(t, []int64{0, 0, 0, 2, 2}, []int64{s.Gaps, s.Losses, s.Orphans, u.Replays, u.Healed})
	require.EqualValues(t, 1, s.Clears, "no credit while it was not known what was lost")

	// What the engine no longer keeps is lost for good.
	p.note(batch(6, 0, removed(10)))
	p.mu.Lock()
	for i := range p.log {
		p.log[i] = nil
	}
	p.mu.Unlock()
	p.publish(batch(7, 0, stored(nil, span(3, 0, 1), 30)))
	l.waits(3, 1)
	require.Equal(t, 0, l.blocks(t, l.base, span(1, 0, 8))+l.blocks(t, l.base, span(2, 0, 8)))
	require.True(t, l.heard("does not continue what is known"))

	// Another process begins with what it has published since.
	p.close()
	l.waits(3, 0)
	var twelve [][]byte
	for i := range uint32(12) {
		twelve = append(twelve, batch(float64(100+i), 0, stored(nil, span(40+i, 0, 2), 10*i, 10*i+1)))
	}
	p = newPublisher(t, address, replay, twelve...)
	l.waits(51, 2)
	require.Equal(t, 2, l.blocks(t, l.base, span(40, 0, 2)))
	require.Equal(t, 0, l.blocks(t, l.base, span(3, 0, 2)))
	p.subscribed()
	p.publish(batch(200, 0, removed(0, 1)))
	l.waits(40, 0)

	// Yet another one has published less than that.
	p.close()
	l.waits(51, 0)
	p = newPublisher(t, address, replay, batch(300, 0, stored(nil, span(60, 0, 2), 1, 2)))
	defer p.close()
	l.waits(60, 2)
	require.Equal(t, 0, l.blocks(t, l.base, span(51, 0, 2)))
	require.True(t, l.heard("the engine has no batch 12"))
	require.NoError(t, kvevents.Check(l.a))
	l.stop()
	require.Zero(t, l.a.Stats().Known, "nobody listens any more")
}

// A replay socket that nobody serves costs what was known, and nothing else.
func TestSubscriberReplayIsDown(t *testing.T) {
	p := newPublisher(t, freePort(t), "")
	defer p.close()
	l := listen(t, kvevents.Source{Address: p.address, Replay: freePort(t)})
	p.subscribed()
	eventually(t, func() bool { return l.heard("replay from tcp://") }, "an error")
	p.publish(batch(1, 0, stored(nil, span(1, 0, 2), 10, 11)))
	l.waits(1, 2)
	p.note(nil)
	p.publish(batch(2, 0, stored(nil, span(2, 0, 2), 20, 21)))
	l.waits(2, 2)
	require.Equal(t, 0, l.blocks(t, l.base, span(1, 0, 2)))
	require.Zero(t, l.s.Stats().Healed)
}

// Peers that speak no ZMTP, or a broken one, harm nobody.
func TestSubscriberGarbagePeer(t *testing.T) {
	ready := func(body string) string { return "\x04" + string(rune(6+len(body))) + "\x05READY" + body }
	greeting := "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL" + strings.Repeat("\x00", 48)
	good := ready("\x0bSocket-Type\x00\x00\x00\x03PUB")
	for name, c := range map[string]struct{ says, want string }{
		"nothing":               {"", "EOF"},
		"another protocol":      {"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n" + strings.Repeat(" ", 64), "invalid ZMTP signature"},
		"metadata cut short":    {greeting + ready("\x0bSocket-Type\x00"), "malformed ZMTP"},
		"a name beyond the end": {greeting + ready("\x0b"), "unexpected EOF"},
		"another socket":        {greeting + ready("\x0bSocket-Type\x00\x00\x00\x03REP"), "not compatible"},
		"a huge command":        {greeting + "\x06\x7f\xff\xff\xff\xff\xff\xff\xff", "a message of more than"},
		"a huge message":        {greeting + good + "\x02\x7f\xff\xff\xff\xff\xff\xff\xff", "a message of more than"},
		"frames without end":    {greeting + good + strings.Repeat("\x01\x00", 1000), "a message of more than 16 frames"},
		"a cut message":         {greeting + good + "\x00\x09abc", "EOF"},
		"an empty command":      {greeting + good + "\x04\x00", "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			var group sync.WaitGroup
			group.Go(func() {
				for {
					conn, err := server.Accept()
					if err != nil {
						return
					}
					_, _ = io.WriteString(conn, c.says)
					// Both ends hang up in an orderly way: a reset could take what was sent with it.
					_ = conn.(*net.TCPConn).CloseWrite()
					_, _ = io.Copy(io.Discard, conn)
					conn.Close()
				}
			})
			l := listen(t, kvevents.Source{Address: "tcp://" + server.Addr().String()})
			eventually(t, func() bool { return l.heard(c.want) && l.s.Stats().Failures > 1 }, c.want)
			l.stop()
			server.Close()
			group.Wait()
		})
	}
}

func TestSubscriberConfig(t *testing.T) {
	t.Parallel()
	a, _ := applier(t, nil)
	_, err := kvevents.NewSubscriber(a, kvevents.SubscriberConfig{
		Sources: []kvevents.Source{{}, {Address: "tcp://host"}, {Address: "udp://host:1"}, {Address: "ipc:///tmp/x", Replay: "x"}},
		Timeout: -1, Backoff: time.Minute,
	})
	for _, want := range []string{
		`kvevents: SubscriberConfig.Sources[0].Address: address "" is not tcp://host:port or ipc://path`,
		`Sources[1].Address: address "tcp://host" has no host and port`, `Sources[2].Address: address "udp://host:1" is not`,
		`Sources[3].Replay: address "x" is not`, "Timeout is -1ns", "MaxBackoff is 10s, it must not be below Backoff, which is 1m0s",
	} {
		require.ErrorContains(t, err, want)
	}
	_, err = kvevents.NewSubscriber(a, kvevents.SubscriberConfig{})
	require.ErrorContains(t, err, "Sources is empty")
	_, err = kvevents.NewSubscriber(nil, kvevents.SubscriberConfig{})
	require.ErrorContains(t, err, "is nil")
	two := []kvevents.Source{{Address: "tcp://h:1"}, {Address: "tcp://h:2"}}
	_, err = kvevents.NewSubscriber(a, kvevents.SubscriberConfig{Sources: two})
	require.ErrorContains(t, err, "Sources has 2, the Applier's Config.Sources is 1")
}

// What one rank says is no reason to knock more often at the door of another.
func TestSubscriberBackoff(t *testing.T) {
	p := newPublisher(t, freePort(t), "")
	defer p.close()
	away, others := freePort(t), make(chan *kvevents.Subscriber, 1)
	var tries atomic.Int64
	l := listenWith(t, func(c *kvevents.SubscriberConfig) {
		c.MaxBackoff = time.Minute
		c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if "tcp://"+address != away {
				return (&net.Dialer{}).DialContext(ctx, network, address)
			}
			tries.Add(1)
			s := <-others
			others <- s
			for before := s.Stats().Messages; s.Stats().Messages == before && ctx.Err() == nil; { // it hangs meanwhile
				runtime.Gosched()
			}
			return nil, errors.New("nobody is there")
		}
	}, kvevents.Source{Address: p.address}, kvevents.Source{Address: away})
	others <- l.s
	p.subscribed()
	for n := uint64(0); l.s.Stats().Messages < 200; n++ { // for some 400 ms, in which it doubles eight times
		before := l.s.Stats().Messages
		p.send([]byte("kv-events"), seqFrame(n), batch(1, 0))
		eventually(t, func() bool { return l.s.Stats().Messages > before }, "another message")
	}
	require.Less(t, tries.Load(), int64(20))
}

func TestSubscriberRunsOnce(t *testing.T) {
	l := listen(t, kvevents.Source{Address: freePort(t)})
	eventually(t, func() bool { return l.s.Stats().Failures > 0 }, "running")
	require.ErrorContains(t, l.s.Run(context.Background()), "running already")
}
