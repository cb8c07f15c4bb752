// SPDX-License-Identifier: Apache-2.0

// Package connlimit bounds the number of connections of a server, so that clients that send
// nothing cannot keep others out. A new connection replaces the connection whose client has kept
// the server waiting longest. It ends a request that is being answered only at a listener of
// Listen, if most of the connections have one.
//
// Not for other programs: it may change without notice.
package connlimit

import (
	"context"
	"net"
	"sync"
)

// Limit is a set of at most a number of connections. Its methods may be called by any goroutine.
type Limit struct {
	max           int
	replaceServed bool // see Listen

	mu      sync.Mutex
	turn    uint64 // of the Slot that changed its state last
	slots   map[*Slot]struct{}
	changed chan struct{} // closed when a Slot is released or begins to wait
}

// New returns a Limit for maxConns connections, at least one.
func New(maxConns int) *Limit {
	return &Limit{max: maxConns, slots: map[*Slot]struct{}{}, changed: make(chan struct{})}
}

// Slot is the place of a connection in a Limit. It waits for its client, or serves it.
type Slot struct {
	limit *Limit
	conn  net.Conn
	// Guarded by limit.mu:
	served bool   // it serves the client
	turn   uint64 // since when it waits or serves
}

// Add gives conn a Slot that waits for its client. If there are too many connections, Add closes
// the connection that has waited longest. If none waits, Add blocks until one does or ends, or
// until ctx ends, whose error it returns. The caller releases the Slot.
func (l *Limit) Add(ctx context.Context, conn net.Conn) (*Slot, error) {
	s := &Slot{limit: l, conn: conn}
	for {
		added, changed := l.add(s)
		if added {
			return s, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// add adds s, or returns a channel that is closed when it may be possible.
func (l *Limit) add(s *Slot) (added bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.slots) >= l.max {
		oldest := l.oldest(l.replaceServed && l.served() >= l.max-l.max/4)
		if oldest == nil {
			return false, l.changed
		}
		delete(l.slots, oldest)
		_ = oldest.conn.Close()
	}
	s.enter(false)
	l.slots[s] = struct{}{}
	return true, nil
}

// served returns the number of Slots that serve their clients. The caller holds mu.
func (l *Limit) served() (n int) {
	for s := range l.slots {
		if s.served {
			n++
		}
	}
	return n
}

// oldest returns the Slot that has waited longest, or that has served longest; nil for none. The caller holds mu.
func (l *Limit) oldest(served bool) (oldest *Slot) {
	for s := range l.slots {
		if s.served == served && (oldest == nil || s.turn < oldest.turn) {
			oldest = s
		}
	}
	return oldest
}

// enter begins to serve or to wait. The caller holds limit.mu.
func (s *Slot) enter(served bool) {
	s.limit.turn++
	s.served, s.turn = served, s.limit.turn
}

// Serve marks the client as served: its connection is not closed for another one, but for the exception that Listen has.
func (s *Slot) Serve() {
	s.limit.mu.Lock()
	defer s.limit.mu.Unlock()
	s.enter(true)
}

// Wait marks the client as awaited, from now on.
func (s *Slot) Wait() {
	l := s.limit
	l.mu.Lock()
	defer l.mu.Unlock()
	s.enter(false)
	l.signal()
}

// Release gives the Slot back. It does not close the connection. Further calls do nothing.
func (s *Slot) Release() {
	l := s.limit
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.slots, s)
	l.signal()
}

// signal wakes all Add. The caller holds mu.
func (l *Limit) signal() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Listen returns a listener that accepts maxConns connections of l at a time. A further one closes the oldest that waits for its client, or the
// oldest served one (Serve) if three quarters are served: Accept does not block, and clients that read no answer leave others the time to send
// their requests. Connections should carry one request each.
func Listen(l net.Listener, maxConns int) net.Listener {
	limit := New(maxConns)
	limit.replaceServed = true
	return &listener{Listener: l, limit: limit}
}

// Serve marks the client of a connection that Listen has accepted as served, from its complete request on. conn may be a TLS connection over
// that one. Serve does nothing for other connections.
func Serve(conn net.Conn) {
	if over, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = over.NetConn()
	}
	if c, ok := conn.(*limitedConn); ok {
		c.slot.Serve()
	}
}

type listener struct {
	net.Listener
	limit *Limit
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	slot, err := l.limit.Add(context.Background(), conn) // does not block: served connections are also replaced
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return &limitedConn{conn, slot}, nil
}

type limitedConn struct {
	net.Conn
	slot *Slot
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.slot.Release()
	return c.Conn.Close()
}
