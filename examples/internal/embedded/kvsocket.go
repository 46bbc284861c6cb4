package embedded

import (
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// kvTimeout is how long a peer may take to shake hands, and to take one message.
const kvTimeout = 5 * time.Second

// socket is the listening side of a ZeroMQ socket, with goroutines that end when it is closed: the library's own PUB socket
// leaves one behind if messages are under way. All methods may be called from any goroutine.
type socket struct {
	ln    net.Listener
	kind  zmq4.SocketType
	serve func(*peer)
	done  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]bool
}

// peer is one connection of a socket. One goroutine may send while another receives.
type peer struct {
	raw  net.Conn
	conn *zmq4.Conn
}

// listenKV starts to accept peers of a socket of that kind, each served in a goroutine of its own until it returns or the
// socket is closed. field names what addr was given as.
func listenKV(kind zmq4.SocketType, field, addr string, serve func(*peer)) (*socket, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("embedded: %s %q: %w", field, addr, err)
	}
	s := &socket{ln: ln, kind: kind, serve: serve, conns: map[net.Conn]bool{}}
	s.done.Go(s.accept)
	return s, nil
}

func (s *socket) addr() string { return s.ln.Addr().String() }

func (s *socket) accept() {
	for {
		c, err := s.ln.Accept()
		if err != nil {
			return // closed: a listener on loopback has no other fault that would pass
		}
		s.mu.Lock()
		if s.closed {
			_ = c.Close()
		} else {
			s.conns[c] = true
			s.done.Go(func() { s.handle(c) })
		}
		s.mu.Unlock()
	}
}

func (s *socket) handle(c net.Conn) {
	defer func() {
		_ = recover() // the library indexes into what a peer has sent without looking how long it is
		_ = c.Close()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	_ = c.SetDeadline(time.Now().Add(kvTimeout))
	conn, err := zmq4.Open(c, null.Security(), s.kind, nil, true, nil)
	if err != nil {
		return
	}
	_ = c.SetDeadline(time.Time{})
	s.serve(&peer{raw: c, conn: conn})
}

// shut takes no more peers. A second time it does nothing.
func (s *socket) shut() { _ = s.ln.Close() }

// close breaks off all connections, and returns when no goroutine of the socket is left.
func (s *socket) close() {
	s.shut()
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.done.Wait()
}

// receive waits for a message.
func (p *peer) receive() ([][]byte, error) {
	msg, err := p.conn.RecvMsg()
	return msg.Frames, err
}

// send sends one. A peer that does not take it is given up.
func (p *peer) send(frames ...[]byte) error {
	_ = p.raw.SetWriteDeadline(time.Now().Add(kvTimeout))
	err := p.conn.SendMsg(zmq4.NewMsgFrom(frames...))
	if err != nil {
		_ = p.raw.Close()
	}
	return err
}
