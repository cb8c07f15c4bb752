// SPDX-License-Identifier: Apache-2.0

package device

import (
	"bytes"
	"container/list"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

const (
	// maxStaged is the largest number of trains that wait for a peer's session, as in the Linux driver.
	maxStaged = 128
	// maxStagedBytes bounds the memory of the trains staged for one peer, since a train may have 64 KiB.
	maxStagedBytes = 1 << 20
	// maxStagedTotal bounds the memory of all staged trains of a device, however many peers are unreachable: a peer can make a hub send
	// to all others.
	maxStagedTotal = 32 << 20
	// stagedOverhead is the memory that a staged train takes besides its bytes: a stagedTrain and two list elements.
	stagedOverhead = 3 * 48
)

// stagedTrains are the staged trains of all peers of a device. Its lock comes after Peer.mu.
type stagedTrains struct {
	mu    sync.Mutex
	order list.List // of *stagedTrain, oldest first
	bytes int       // their memory
}

// stagedQueue holds the trains that wait for a session with one peer, oldest first. stagedTrains.mu guards it.
type stagedQueue struct {
	trains list.List // of *stagedTrain
	bytes  int
}

// stagedTrain is one train and its number of packets.
type stagedTrain struct {
	peer    *Peer
	bytes   []byte
	packets int
	order   *list.Element // in stagedTrains.order
}

// size returns the memory of a train.
func (s *stagedTrain) size() int { return cap(s.bytes) + stagedOverhead }

// Stage implements engine.SlowPath. It holds the peer's lock while it decides. Nothing can thus be staged after a session
// has become current, and the order is kept.
func (p *Peer) Stage(train []byte, packets int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch keys := p.engine.Current.Load(); {
	case !p.isUp():
		p.dropForPeer(drop.TXDown, packets)
	case keys.Usable(p.dev.clock()):
		p.dev.engine.Transmit(p.engine, keys, train)
	case p.handshake.remote == nil:
		p.dropForPeer(drop.TXNoSession, packets)
	default:
		p.stage(train, packets)
		p.post(taskHandshake)
	}
}

// stage appends a copy of train. Beyond the limits the oldest trains are dropped: those of the peer first, then those of any. So a peer
// that has just become active keeps its first packets even while another host sends to many that do not answer. The caller holds mu.
func (p *Peer) stage(train []byte, packets int) {
	s := &stagedTrain{peer: p, bytes: bytes.Clone(train), packets: packets}
	all, own := &p.dev.staged, &p.staged
	all.mu.Lock()
	defer all.mu.Unlock()
	for own.trains.Len() > 0 && (own.trains.Len() >= maxStaged || own.bytes+s.size() > maxStagedBytes) {
		all.dropOldest(&own.trains, drop.TXStagedOverflow)
	}
	for all.order.Len() > 0 && all.bytes+s.size() > maxStagedTotal {
		all.dropOldest(&all.order, drop.TXStagedOverflow)
	}
	s.order = all.order.PushBack(s)
	own.trains.PushBack(s)
	own.bytes += s.size()
	all.bytes += s.size()
}

// dropOldest drops the first train of l, all of which are in order of age. The caller holds mu.
func (a *stagedTrains) dropOldest(l *list.List, why drop.Reason) {
	s := l.Front().Value.(*stagedTrain)
	a.remove(s)
	s.peer.dropForPeer(why, s.packets)
}

// remove removes the oldest train of a peer. The caller holds mu.
func (a *stagedTrains) remove(s *stagedTrain) {
	own := &s.peer.staged
	own.trains.Remove(own.trains.Front())
	a.order.Remove(s.order)
	own.bytes -= s.size()
	a.bytes -= s.size()
}

// unstage removes and returns the oldest train of the peer, nil if there is none.
func (p *Peer) unstage() *stagedTrain {
	all := &p.dev.staged
	all.mu.Lock()
	defer all.mu.Unlock()
	first := p.staged.trains.Front()
	if first == nil {
		return nil
	}
	s := first.Value.(*stagedTrain)
	all.remove(s)
	return s
}

// hasStaged reports whether trains wait for a session with the peer. While the caller holds mu, none is added.
func (p *Peer) hasStaged() bool {
	p.dev.staged.mu.Lock()
	defer p.dev.staged.mu.Unlock()
	return p.staged.trains.Len() > 0
}

// dropStaged drops all staged trains of the peer. The caller holds mu.
func (p *Peer) dropStaged() {
	for s := p.unstage(); s != nil; s = p.unstage() {
		p.dropForPeer(drop.TXStagedExpired, s.packets)
	}
}

// dropStaged drops the staged trains of all peers.
func (d *Device) dropStaged() {
	all := &d.staged
	all.mu.Lock()
	defer all.mu.Unlock()
	for all.order.Len() > 0 {
		all.dropOldest(&all.order, drop.TXStagedExpired)
	}
}

// dropForPeer counts n packets to the peer as dropped.
func (p *Peer) dropForPeer(why drop.Reason, n int) { p.dev.engine.DropForPeer(p.engine, why, n) }
