// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"

	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/session"
	"github.com/ropewalk/ropewalk/pkg/tun"
	"github.com/ropewalk/ropewalk/pkg/underlay"
	"github.com/ropewalk/ropewalk/pkg/wire"
)

// slowLane sends what no lane can: keepalives and hellos, and packets that waited for a session. It is a transmitter of
// its own over the port's SendRun, under a lock. It also receives the port's strays.
type slowLane struct {
	lane *lane
	mu   sync.Mutex
	tx   *transmitter // made on first use
}

// secondarySlots is how many stray datagrams one receive call may return: there are none, unless a peer that does not gather
// is spread to.
const secondarySlots = 4

// injector writes strays to a queue beside its lane.
type injector struct{ tun.Queue }

// Write implements tun.Queue.
func (q injector) Write(parts [][]byte) error { return q.Inject(parts) }

// portLane makes a Lane of a Port's SendRun. Only Send is ever called.
type portLane struct {
	underlay.Lane
	port underlay.Port
}

// Send implements underlay.Lane.
func (s portLane) Send(runs []underlay.Run) (failed int) {
	for i := range runs {
		r := &runs[i]
		if r.Err = s.port.SendRun(r); r.Err != nil {
			failed++
		}
	}
	return failed
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
		s.tx.drops = &e.SlowDrops // Stats knows no lane of this number
		s.tx.flows = nil          // the lane that staged a packet has noted its flow
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
	case !t.parse(slot[headroom : headroom+n]):
	case p.Endpoint.Load() == nil:
		t.dropForPeer(p, drop.TXNoEndpoint, t.train.Segments())
	default:
		t.enqueue(slot, p, keys)
		t.flush()
	}
}

// DropForPeer counts n messages to p, or packets that were to become such, that were dropped away from the lanes.
func (e *Engine) DropForPeer(p *Peer, why drop.Reason, n int) {
	e.SlowDrops.Add(why, n)
	p.slow.txDrops.Add(uint64(n))
}

// SendKeepalive sends p an empty message under keys.
func (e *Engine) SendKeepalive(p *Peer, keys *session.Keypair) { e.sendControl(p, keys, 0, nil) }

// SendHello sends p a hello (wire.AppendHello) under keys, from that source of the port. For the timers it is a keepalive: it
// asks for no answer.
func (e *Engine) SendHello(p *Peer, keys *session.Keypair, source int, hello []byte) {
	e.sendControl(p, keys, source, hello)
}

// sendControl sends p one message that is no packet.
func (e *Engine) sendControl(p *Peer, keys *session.Keypair, source int, plain []byte) {
	e.slow.mu.Lock()
	defer e.slow.mu.Unlock()
	t := e.slow.transmitter(e)
	if p.Endpoint.Load() == nil {
		t.dropForPeer(p, drop.TXNoEndpoint, 1)
		return
	}
	n := copy(t.slots[0][wire.DataHeaderLen:], plain)
	t.enqueueSingle(t.slots[0], n, p, keys, source)
	t.flush()
}
