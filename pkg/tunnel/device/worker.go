// SPDX-License-Identifier: Apache-2.0

package device

import (
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// runWorker handles handshake messages and peers' tasks until the device stops.
func (d *Device) runWorker() {
	for {
		select {
		case <-d.stop:
			return
		case m := <-d.handshakes.reserved:
			d.engine.SlowDrops.Add(d.handleQueued(m), 1)
		case m := <-d.handshakes.messages:
			d.engine.SlowDrops.Add(d.handleQueued(m), 1)
		case <-d.tasks.waiting:
			d.tasks.take().runTasks()
			d.checkStalls()
		}
	}
}

// Handshake implements engine.Control: it copies a handshake message to a queue.
func (d *Device) Handshake(msg []byte, from underlay.Endpoint) drop.Reason {
	if len(msg) > wire.InitiationSize {
		return drop.RXBadLength
	}
	if d.hasUnknownIndex(msg) {
		return drop.RXUnknownIndex
	}
	var t triage
	now := d.clock()
	if d.handshakes.underLoad(now) {
		if t = d.triage(msg, from, now); t.reason != drop.None {
			return t.reason
		}
	} else {
		d.cookies.senders.release(now)
	}
	m := d.handshakes.free.Get().(*handshakeMessage)
	m.from, m.standing, m.n = from, t.standing, copy(m.msg[:], msg)
	if !d.handshakes.put(m, t.reserve) {
		d.handshakes.free.Put(m)
		return drop.HSQueueFull
	}
	t.cookies.count(now)
	return drop.None
}

// hasUnknownIndex reports whether a message is a response or cookie reply to a receiver index that is not ours. No worker wakes for it.
func (d *Device) hasUnknownIndex(msg []byte) bool {
	kind, reason := wire.Classify(msg)
	return reason == drop.None && kind != wire.TypeInitiation && kind != wire.TypeData && d.byIndex(wire.ReceiverIndex(msg)) == nil
}

// handleQueued handles a message from a queue.
func (d *Device) handleQueued(m *handshakeMessage) drop.Reason {
	if m.group != nil {
		m.group.Add(-1)
	}
	reason := d.handleHandshake(m.msg[:m.n], m.from, m.standing)
	d.handshakes.free.Put(m)
	return reason
}
