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
	// inboxLen is how many handshake messages may wait for a worker.
	inboxLen = 4096
	// loadedLen is how many waiting messages mean that the device is under load (WireGuard paper §5.3).
	loadedLen = inboxLen / 8
	// loadedFor is how long, in nanoseconds, the device counts as loaded after that.
	loadedFor = 1e9
)

// letter is one handshake or cookie message, copied out of a lane's buffer.
type letter struct {
	from underlay.Endpoint
	n    int
	msg  [wire.InitiationSize]byte
}

// inbox takes handshake messages from the lanes without blocking them.
type inbox struct {
	letters     chan *letter
	blank       sync.Pool // of *letter: an idle device holds none
	loadedUntil atomic.Int64
}

func (b *inbox) open() {
	b.letters = make(chan *letter, inboxLen)
	b.blank.New = func() any { return new(letter) }
}

// loaded reports whether handshakes arrive faster than they can be worked off.
func (b *inbox) loaded(now int64) bool {
	if len(b.letters) >= loadedLen {
		b.loadedUntil.Store(now + loadedFor)
		return true
	}
	return now < b.loadedUntil.Load()
}

// Handshake implements engine.Control.
func (d *Device) Handshake(msg []byte, from underlay.Endpoint) drop.Reason {
	l := d.inbox.blank.Get().(*letter)
	l.from, l.n = from, len(msg)
	if copy(l.msg[:], msg) < len(msg) {
		d.inbox.blank.Put(l)
		return drop.RXBadLength
	}
	select {
	case d.inbox.letters <- l:
		return drop.None
	default:
		d.inbox.blank.Put(l)
		return drop.HSQueueFull
	}
}

// read handles a message from the inbox.
func (d *Device) read(l *letter) drop.Reason {
	reason := d.open(l.msg[:l.n], l.from)
	d.inbox.blank.Put(l)
	return reason
}

// work handles handshake messages and peers' tasks until the device stops.
func (d *Device) work() {
	for {
		select {
		case <-d.stop:
			return
		case l := <-d.inbox.letters:
			d.engine.Slow.Add(d.read(l), 1)
		case <-d.tasks.waiting:
			d.tasks.take().attend()
		}
	}
}
