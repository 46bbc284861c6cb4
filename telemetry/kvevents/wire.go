package kvevents

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// splitAddress takes a ZeroMQ address apart for net.Dialer.
func splitAddress(address string) (network, addr string, err error) {
	scheme, rest, ok := strings.Cut(address, "://")
	switch {
	case !ok || rest == "":
	case scheme == "ipc":
		return "unix", rest, nil
	case scheme == "tcp":
		if _, port, err := net.SplitHostPort(rest); err != nil || port == "" {
			return "", "", fmt.Errorf("address %q has no host and port", address)
		}
		return "tcp", rest, nil
	}
	return "", "", fmt.Errorf("address %q is not tcp://host:port or ipc://path", address)
}

const (
	// greetingBytes is what a ZMTP connection begins with, before frames (ZMTP 3.0, 23/ZMTP).
	greetingBytes = 64

	frameMore = 1
	frameLong = 2

	// maxFrames bounds the frames of a message.
	maxFrames = 16
)

// guard is a connection whose incoming messages are bounded: the library makes room for whatever size a peer announces. It
// follows the frames as they are read: flags, size in one or eight bytes, body. It belongs to one goroutine.
type guard struct {
	net.Conn
	in      *bufio.Reader // the library reads heads of two bytes
	most    uint64        // bytes of a message
	toGreet int           // bytes of the greeting that are to come yet
	head    [9]byte
	headLen int    // bytes of head that were read
	body    uint64 // bytes of the frame's body that are to come yet
	frames  int    // of the message so far
	total   uint64
	err     error
}

func newGuard(c net.Conn, most int) *guard {
	return &guard{Conn: c, in: bufio.NewReaderSize(c, 64<<10), most: uint64(most), toGreet: greetingBytes}
}

// Read reads, and fails for good once a message has turned out too large.
func (g *guard) Read(p []byte) (int, error) {
	if g.err != nil {
		return 0, g.err
	}
	n, err := g.in.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		switch {
		case g.toGreet > 0:
			k := min(g.toGreet, len(rest))
			g.toGreet -= k
			rest = rest[k:]
		case g.body > 0:
			k := min(g.body, uint64(len(rest)))
			g.body -= k
			rest = rest[k:]
		default:
			g.head[g.headLen] = rest[0]
			g.headLen++
			rest = rest[1:]
			if g.err = g.frame(); g.err != nil {
				return 0, g.err
			}
		}
	}
	return n, err
}

// frame looks whether head is whole.
func (g *guard) frame() error {
	var size uint64
	switch long := g.head[0]&frameLong != 0; {
	case !long && g.headLen == 2:
		size = uint64(g.head[1])
	case long && g.headLen == 9:
		size = binary.BigEndian.Uint64(g.head[1:])
	default:
		return nil
	}
	g.headLen = 0
	g.frames++
	if size > g.most || g.total+size > g.most {
		return fmt.Errorf("a message of more than %d bytes", g.most)
	}
	if g.frames > maxFrames {
		return fmt.Errorf("a message of more than %d frames", maxFrames)
	}
	g.body = size
	g.total += size
	if g.head[0]&frameMore == 0 {
		g.frames, g.total = 0, 0
	}
	return nil
}

// wire is a ZMTP connection. It belongs to one goroutine.
type wire struct {
	raw  net.Conn
	conn *zmq4.Conn
}

// shield makes a panic in f an error: the library indexes into what a peer has sent without looking how long it is.
func shield(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("malformed ZMTP: %v", r)
		}
	}()
	return f()
}

// open shakes hands over c, in at most timeout. c remains the caller's to close.
func open(c net.Conn, kind zmq4.SocketType, most int, timeout time.Duration) (*wire, error) {
	w := &wire{raw: c}
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	err := shield(func() (err error) {
		w.conn, err = zmq4.Open(newGuard(c, most), null.Security(), kind, nil, false, nil)
		return err
	})
	if err != nil {
		return nil, err
	}
	return w, c.SetDeadline(time.Time{})
}

// send sends one message, in at most timeout.
func (w *wire) send(timeout time.Duration, frames ...[]byte) error {
	if err := w.raw.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	return w.conn.SendMsg(zmq4.NewMsgFrom(frames...))
}

// receive waits for the next message; timeout 0 means for ever.
func (w *wire) receive(timeout time.Duration) ([][]byte, error) {
	var until time.Time
	if timeout > 0 {
		until = time.Now().Add(timeout)
	}
	if err := w.raw.SetReadDeadline(until); err != nil {
		return nil, err
	}
	for {
		var msg zmq4.Msg
		err := shield(func() (err error) {
			msg, err = w.conn.RecvMsg()
			return err
		})
		if err != nil {
			return nil, err
		}
		if msg.Type != zmq4.CmdMsg { // a PING has been answered
			return msg.Frames, nil
		}
	}
}

var errNotABatch = errors.New("not a batch: topic, sequence number of 8 bytes, payload")

// parseLive takes a published message apart.
func parseLive(frames [][]byte) (topic string, seq uint64, payload []byte, err error) {
	if len(frames) != 3 || len(frames[1]) != 8 {
		return "", 0, nil, errNotABatch
	}
	return string(frames[0]), binary.BigEndian.Uint64(frames[1]), frames[2], nil
}

// parseReplayed takes a message of the replay socket apart: what is before sequence number and payload does not matter. end
// is the one behind the last batch, without a payload.
func parseReplayed(frames [][]byte) (seq uint64, payload []byte, end bool, err error) {
	n := len(frames)
	if n < 2 || n > 4 || len(frames[n-2]) != 8 {
		return 0, nil, false, errNotABatch
	}
	return binary.BigEndian.Uint64(frames[n-2]), frames[n-1], len(frames[n-1]) == 0, nil
}
