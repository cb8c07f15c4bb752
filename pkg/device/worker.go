// SPDX-License-Identifier: Apache-2.0

package device

import (
	"sync"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/underlay"
	"github.com/ropewalk/ropewalk/pkg/wire"
)

const (
	// handshakeQueueLen is how many handshake messages may wait for a worker.
	handshakeQueueLen = 4096
	// underLoadLen is how many waiting messages mean that the device is under load (WireGuard paper §5.3).
	underLoadLen = handshakeQueueLen / 8
	// underLoadFor is how long, in nanoseconds, the device counts as loaded after that.
	underLoadFor = 1e9
)

// handshakeMessage is one handshake or cookie message, copied out of a lane's buffer.
type handshakeMessage struct {
	from underlay.Endpoint
	n    int
	msg  [wire.InitiationSize]byte
}

// handshakes takes handshake messages from the lanes without blocking them.
type handshakeQueue struct {
	messages       chan *handshakeMessage
	free           sync.Pool // of *letter: an idle device holds none
	underLoadUntil atomic.Int64
}

func (b *handshakeQueue) init() {
	b.messages = make(chan *handshakeMessage, handshakeQueueLen)
	b.free.New = func() any { return new(handshakeMessage) }
}

// underLoad reports whether handshakes arrive faster than they can be worked off.
func (b *handshakeQueue) underLoad(now int64) bool {
	if len(b.messages) >= underLoadLen {
		b.underLoadUntil.Store(now + underLoadFor)
		return true
	}
	return now < b.underLoadUntil.Load()
}

// Handshake implements engine.Control.
func (d *Device) Handshake(msg []byte, from underlay.Endpoint) drop.Reason {
	l := d.handshakes.free.Get().(*handshakeMessage)
	l.from, l.n = from, len(msg)
	if copy(l.msg[:], msg) < len(msg) {
		d.handshakes.free.Put(l)
		return drop.RXBadLength
	}
	select {
	case d.handshakes.messages <- l:
		return drop.None
	default:
		d.handshakes.free.Put(l)
		return drop.HSQueueFull
	}
}

// handleQueued handles a message from the inbox.
func (d *Device) handleQueued(l *handshakeMessage) drop.Reason {
	reason := d.handleHandshake(l.msg[:l.n], l.from)
	d.handshakes.free.Put(l)
	return reason
}

// runWorker handles handshake messages and peers' tasks until the device stops.
func (d *Device) runWorker() {
	for {
		select {
		case <-d.stop:
			return
		case l := <-d.handshakes.messages:
			d.engine.SlowDrops.Add(d.handleQueued(l), 1)
		case <-d.tasks.waiting:
			d.tasks.take().runTasks()
		}
	}
}
