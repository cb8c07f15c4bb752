// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"

	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/session"
	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// slowLane sends what no lane can: keepalives, and packets that waited for a session. It is a transmitter of its own
// over the port's SendTo, under a lock.
type slowLane struct {
	lane *lane
	mu   sync.Mutex
	tx   *transmitter // made on first use
}

// portLane makes a Lane of a Port's SendTo. Only Send is ever called. ECN is left out, as RFC 6040, section 4.1, allows
// (compatibility mode): what waited for a session is a handful of packets, and congestion drops instead of marking them.
type portLane struct {
	underlay.Lane
	port underlay.Port
}

// Send implements underlay.Lane, one datagram at a time.
func (s portLane) Send(runs []underlay.Run) (failed int) {
	for i := range runs {
		r := &runs[i]
		r.Err = s.send(r)
		if r.Err != nil {
			failed++
		}
	}
	return failed
}

func (s portLane) send(r *underlay.Run) error {
	for _, part := range r.Parts {
		for len(part) > 0 {
			n := min(r.SegSize, len(part))
			if err := s.port.SendTo(r.To, part[:n]); err != nil {
				return err
			}
			part = part[n:]
		}
	}
	return nil
}

// attach makes port the one to send to; nil for none.
func (s *slowLane) attach(port underlay.Port) {
	s.mu.Lock()
	defer s.mu.Unlock()
	conn := underlay.Lane(portLane{port: port})
	if port == nil {
		s.lane.conn.Store(nil)
		return
	}
	s.lane.conn.Store(&conn)
}

// transmitter returns the slow lane's transmitter. The caller holds mu.
func (s *slowLane) transmitter(e *Engine) *transmitter {
	if s.tx == nil {
		s.tx = newTransmitter(s.lane, 1)
		s.tx.drops = &e.Slow // Stats knows no lane of this number
	}
	s.tx.now = e.cfg.Clock()
	s.tx.mtu = int(e.padLimit.Load())
	return s.tx
}

// Transmit sends one element (see tun.Queue) to p under keys, away from the lanes, whatever the routes say. Elements
// of one caller leave in order. What cannot be sent is counted.
func (e *Engine) Transmit(p *Peer, keys *session.Keypair, element []byte) {
	e.slow.mu.Lock()
	defer e.slow.mu.Unlock()
	t := e.slow.transmitter(e)
	slot := t.slots[0]
	n := copy(t.bufs[0], element)
	switch {
	case !t.parse(slot[slack : slack+n]):
	case p.Endpoint.Load() == nil:
		t.drop(drop.TXNoEndpoint, t.train.Segments())
	default:
		t.carry(slot, p, keys)
		t.flush()
	}
}

// Keepalive sends p an empty message under keys.
func (e *Engine) Keepalive(p *Peer, keys *session.Keypair) {
	e.slow.mu.Lock()
	defer e.slow.mu.Unlock()
	if p.Endpoint.Load() == nil {
		e.Slow.Add(drop.TXNoEndpoint, 1)
		return
	}
	t := e.slow.transmitter(e)
	t.single(t.slots[0], 0, p, keys)
	t.flush()
}
