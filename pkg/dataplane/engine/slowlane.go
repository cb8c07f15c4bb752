// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

// slowLane sends keepalives, hellos, and packets that waited for a session. It has a transmitter of its own over the port's
// SendRun, under a lock. It also receives from the port's secondary ports.
type slowLane struct {
	lane *lane
	mu   sync.Mutex
	tx   *transmitter // created on first use
}

// secondarySlots is the number of datagrams per receive call on the secondary ports. They receive nothing unless a peer
// answers to them, which happens when spread is forced towards a peer that does not gather.
const secondarySlots = 4

// injector writes packets from secondary ports to a queue that its lane also uses.
type injector struct{ tun.Queue }

// Write implements tun.Queue.
func (i injector) Write(parts [][]byte) error { return i.Inject(parts) }

// portLane adapts a Port's SendRun to the Lane interface. Only Send is called.
type portLane struct {
	underlay.Lane
	port underlay.Port
}

// Send implements underlay.Lane.
func (p portLane) Send(runs []underlay.Run) (failed int) {
	for i := range runs {
		r := &runs[i]
		if r.Err = p.port.SendRun(r); r.Err != nil {
			failed++
		}
	}
	return failed
}

// attach sets the port to send to; nil for none. It waits for nobody who sends.
func (s *slowLane) attach(port underlay.Port) {
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
		s.tx.drops = &e.SlowDrops // the slow lane is not among the lanes of Stats
		s.tx.holds = false        // its callers hold locks
		s.tx.flowlets = nil       // the lane that staged a packet has recorded its flow
	}
	s.tx.now = e.cfg.Clock()
	s.tx.mtu = int(e.mtu.Load())
	return s.tx
}

// Transmit sends one train (see tun.Queue) to p under keys, outside the lanes and without a route lookup. Trains of one
// caller leave in order. Packets that cannot be sent are counted.
func (e *Engine) Transmit(p *Peer, keys *session.Keypair, train []byte) {
	e.slow.mu.Lock()
	defer e.slow.mu.Unlock()
	t := e.slow.transmitter(e)
	slot := t.slots[0]
	n := copy(t.bufs[0], train)
	switch {
	case !t.parse(slot[headroom : headroom+n]):
	case p.Endpoint.Load() == nil:
		t.dropForPeer(p, drop.TXNoEndpoint, t.train.Segments())
	default:
		t.enqueue(slot, p, keys, t.chooseSource(p), 0)
		t.flush()
	}
}

// DropForPeer counts n messages or packets to p that were dropped outside the lanes.
func (e *Engine) DropForPeer(p *Peer, why drop.Reason, n int) {
	e.SlowDrops.Add(why, n)
	p.slow.txDrops.Add(uint64(n))
}
