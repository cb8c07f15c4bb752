// SPDX-License-Identifier: Apache-2.0

// Package connlimit bounds the number of connections of a server, so that clients that send nothing cannot keep others out: a new
// connection replaces the one whose client has kept the server waiting longest.
package connlimit

import (
	"context"
	"net"
	"sync"
)

// Limit is a set of at most a number of connections. Its methods may be called by any goroutine.
type Limit struct {
	max int

	mu      sync.Mutex
	turn    uint64 // of the Slot that began to wait last
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
	turn  uint64 // when it began to wait for its client; 0 while it serves the client. Guarded by limit.mu
}

// Add gives conn a Slot that waits for its client. If there are too many connections, Add closes the one that has waited longest. If
// none waits, Add blocks until one does or ends, or until ctx ends, whose error it returns. The caller releases the Slot.
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
		oldest := l.longestWaiting()
		if oldest == nil {
			return false, l.changed
		}
		delete(l.slots, oldest)
		_ = oldest.conn.Close()
	}
	l.turn++
	s.turn = l.turn
	l.slots[s] = struct{}{}
	return true, nil
}

func (l *Limit) longestWaiting() (oldest *Slot) {
	for s := range l.slots {
		if s.turn != 0 && (oldest == nil || s.turn < oldest.turn) {
			oldest = s
		}
	}
	return oldest
}

// Serve marks the client as served: its connection is not closed for another one.
func (s *Slot) Serve() {
	s.limit.mu.Lock()
	defer s.limit.mu.Unlock()
	s.turn = 0
}

// Wait marks the client as one that is waited for, from now on.
func (s *Slot) Wait() {
	l := s.limit
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn++
	s.turn = l.turn
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

// Listen returns a listener that accepts maxConns connections of l at a time. A further one closes the oldest, whatever its state:
// connections should carry one request each.
func Listen(l net.Listener, maxConns int) net.Listener {
	return &listener{Listener: l, limit: New(maxConns)}
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
	slot, err := l.limit.Add(context.Background(), conn) // does not block: all connections wait
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
