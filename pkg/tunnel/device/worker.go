// SPDX-License-Identifier: Apache-2.0

package device

import (
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// runWorker handles handshake messages and peers' tasks until the device stops.
func (d *Device) runWorker() {
	for {
		select {
		case <-d.stop:
			return
		case m := <-d.handshakes.messages:
			d.engine.SlowDrops.Add(d.handleQueued(m), 1)
		case <-d.tasks.waiting:
			d.tasks.take().runTasks()
		}
	}
}

// Handshake implements engine.Control: it copies a handshake message to the queue.
func (d *Device) Handshake(msg []byte, from underlay.Endpoint) drop.Reason {
	m := d.handshakes.free.Get().(*handshakeMessage)
	m.from, m.n = from, len(msg)
	if copy(m.msg[:], msg) < len(msg) {
		d.handshakes.free.Put(m)
		return drop.RXBadLength
	}
	select {
	case d.handshakes.messages <- m:
		return drop.None
	default:
		d.handshakes.free.Put(m)
		return drop.HSQueueFull
	}
}

// handleQueued handles a message from the queue.
func (d *Device) handleQueued(m *handshakeMessage) drop.Reason {
	reason := d.handleHandshake(m.msg[:m.n], m.from)
	d.handshakes.free.Put(m)
	return reason
}
