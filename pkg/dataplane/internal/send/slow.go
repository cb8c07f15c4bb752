// SPDX-License-Identifier: Apache-2.0

package send

import (
	"errors"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// ControlMessage is a message to a peer that is not an IP packet.
type ControlMessage struct {
	Source int    // of the port from which it is sent
	Plain  []byte // a hello or a probe; nil for a keepalive
	// Size is the number of bytes of the plaintext of a probe of the path MTU, which zeros fill
	// up. No host and no router fragments it. 0 means the size of Plain, with WireGuard's padding.
	Size int
	// Lead is the plaintext of a message of Size bytes that precedes it in one train; nil for none.
	Lead []byte
}

// SendControl is engine.Engine.SendControl.
func (s *Slow) SendControl(p *lane.Peer, keys *session.Keypair, messages []ControlMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.transmitter()
	for i := range messages {
		m := &messages[i]
		if m.Size > 0 {
			t.sendOfSize(p, keys, m)
			continue
		}
		if len(m.Plain) > 0 {
			s.Lane.Stats.TxControl.Add(1)
		}
		if p.Endpoint.Load() == nil {
			t.out.dropForPeer(p, drop.TXNoEndpoint, 1)
			continue
		}
		slot := t.out.allocate(wire.DataOverhead + len(m.Plain) + wire.PaddingMultiple)
		t.enqueueSingle(slot, copy(slot[wire.DataHeaderLen:], m.Plain), p, keys, m.Source)
	}
	t.out.flush()
}

// sendOfSize seals a message of a size, and its Lead, and sends them as one run.
func (t *Transmitter) sendOfSize(p *lane.Peer, keys *session.Keypair, m *ControlMessage) {
	to, conn := p.Endpoint.Load(), t.out.lane.Conn.Load()
	plains := [][]byte{m.Plain}
	if m.Lead != nil {
		plains = [][]byte{m.Lead, m.Plain}
	}
	size, n := wire.DataOverhead+m.Size, len(plains)
	if to == nil || conn == nil || m.Size < max(len(m.Plain), len(m.Lead)) || n*size > underlay.MaxDatagramRun {
		return
	}
	train := t.out.batch.slots[0][:n*size]
	clear(train)
	messages := make([][]byte, n)
	for i, plain := range plains {
		messages[i] = train[i*size : (i+1)*size : (i+1)*size]
		copy(messages[i][wire.DataHeaderLen:], plain)
	}
	counter, ok := keys.Reserve(n)
	if !ok || !keys.SealEach(&t.out.scratch, messages, counter) {
		t.out.lane.Stats.TxControl.Add(uint64(n))
		t.out.dropForPeer(p, drop.TXNoSession, n)
		return
	}
	run := [1]underlay.Run{{To: to, Parts: [][]byte{train}, SegSize: size, Segments: n, Source: m.Source, DontFragment: true}}
	(*conn).Send(run[:])
	if errors.Is(run[0].Err, underlay.ErrTooBig) {
		return
	}
	t.out.lane.Stats.TxControl.Add(uint64(n))
	if run[0].Err != nil {
		t.out.dropForPeer(p, sendDropReason(run[0].Err), n)
		return
	}
	sent := &runMeta{peer: p, keys: keys, source: m.Source, segments: n, bytes: len(train)}
	sent.noteSent(t.out.now)
	t.out.countSent([]*runMeta{sent})
}

// Slow sends keepalives, hellos, and packets that waited for a session. It has a transmitter of its own over the port's
// SendRun, under a lock.
type Slow struct {
	Lane  *lane.Lane
	drops *drop.Counters
	mu    sync.Mutex
	tx    *Transmitter // created on first use
}

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

// NewSlow returns the slow path of a lane of its own. It counts drops in drops.
func NewSlow(l *lane.Lane, drops *drop.Counters) *Slow { return &Slow{Lane: l, drops: drops} }

// Attach sets the port to send to; nil for none. It waits for nobody who sends.
func (s *Slow) Attach(port underlay.Port) {
	conn := underlay.Lane(portLane{port: port})
	if port == nil {
		s.Lane.Conn.Store(nil)
		return
	}
	s.Lane.Conn.Store(&conn)
}

// transmitter returns the transmitter. The caller holds mu.
func (s *Slow) transmitter() *Transmitter {
	if s.tx == nil {
		s.tx = New(s.Lane, 1)
		s.tx.out.drops = s.drops // the slow path is not among the lanes of Stats
		s.tx.out.holds = false   // its callers hold locks
		s.tx.flowlets = nil      // the lane that staged a packet has recorded its flow
	}
	s.tx.out.now = s.Lane.Shared.Clock()
	s.tx.mtu = int(s.Lane.Shared.MTU.Load())
	return s.tx
}

// Transmit is engine.Engine.Transmit.
func (s *Slow) Transmit(p *lane.Peer, keys *session.Keypair, train []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.transmitter()
	slot := t.out.batch.slots[0]
	n := copy(t.out.batch.bufs[0], train)
	switch {
	case !t.parse(slot[lane.Headroom : lane.Headroom+n]):
	case p.Endpoint.Load() == nil:
		t.out.dropForPeer(p, drop.TXNoEndpoint, t.train.Segments())
	default:
		t.enqueue(slot, p, keys, t.chooseSource(p), 0)
		t.out.flush()
	}
}
