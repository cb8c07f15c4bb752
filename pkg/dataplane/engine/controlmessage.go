// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// ControlMessage is a message to a peer that is not an IP packet.
type ControlMessage struct {
	Source int    // of the port from which it is sent
	Plain  []byte // a hello or a probe; nil for a keepalive
	// Size is the number of bytes of the plaintext of a probe of the path MTU, which zeros fill up. No host and no router fragments it. 0 is that
	// of Plain, with WireGuard's padding.
	Size int
}

// SendKeepalive sends p an empty message under keys.
func (e *Engine) SendKeepalive(p *Peer, keys *session.Keypair) {
	e.SendControl(p, keys, ControlMessage{})
}

// SendControl sends p messages under keys with one system call for each source, those of one source in order. The timers expect no answer to
// them. Those that cannot be sent are counted as drops, except those with a Size for which the network device is too small.
func (e *Engine) SendControl(p *Peer, keys *session.Keypair, messages ...ControlMessage) {
	e.slow.mu.Lock()
	defer e.slow.mu.Unlock()
	t := e.slow.transmitter(e)
	for i := range messages {
		m := &messages[i]
		if m.Size > 0 {
			t.sendOfSize(p, keys, m)
			continue
		}
		if len(m.Plain) > 0 {
			t.lane.stats.txControl.Add(1)
		}
		if p.Endpoint.Load() == nil {
			t.dropForPeer(p, drop.TXNoEndpoint, 1)
			continue
		}
		slot := t.allocate(wire.DataOverhead + len(m.Plain) + wire.PaddingMultiple)
		t.enqueueSingle(slot, copy(slot[wire.DataHeaderLen:], m.Plain), p, keys, m.Source)
	}
	t.flush()
}

// sendOfSize seals a message of a size and sends it.
func (t *transmitter) sendOfSize(p *Peer, keys *session.Keypair, m *ControlMessage) {
	to, conn := p.Endpoint.Load(), t.lane.conn.Load()
	if to == nil || conn == nil || m.Size < len(m.Plain) || m.Size > underlay.MaxDatagramRun-wire.DataOverhead {
		return
	}
	msg := t.slots[0][:wire.DataOverhead+m.Size]
	clear(msg)
	copy(msg[wire.DataHeaderLen:], m.Plain)
	counter, ok := keys.Reserve(1)
	if !ok || !keys.SealEach(&t.scratch, [][]byte{msg}, counter) {
		t.lane.stats.txControl.Add(1)
		t.dropForPeer(p, drop.TXNoSession, 1)
		return
	}
	run := [1]underlay.Run{{To: to, Parts: [][]byte{msg}, SegSize: len(msg), Segments: 1, Source: m.Source, DontFragment: true}}
	(*conn).Send(run[:])
	if errors.Is(run[0].Err, underlay.ErrTooBig) {
		return
	}
	t.lane.stats.txControl.Add(1)
	if run[0].Err != nil {
		t.dropForPeer(p, sendDropReason(run[0].Err), 1)
		return
	}
	sent := &runMeta{peer: p, keys: keys, source: m.Source, segments: 1, bytes: len(msg)}
	p.sent(t.now, sent)
	t.countSent([]*runMeta{sent})
}
