// SPDX-License-Identifier: Apache-2.0

package device

import (
	"bytes"
	"container/list"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

const (
	// maxStaged is the largest number of trains that wait for a peer's session, as in the Linux driver.
	maxStaged = 128
	// maxPublished bounds the trains that a worker sends with a peer's lock while lanes stage further ones.
	maxPublished = 4 * maxStaged
	// maxStagedBytes bounds the memory of the trains staged for one peer, since a train may have 64 KiB.
	maxStagedBytes = 1 << 20
	// maxStagedTotal bounds the memory of all staged trains of a device, however many peers are unreachable: a peer can make a hub send
	// to all others.
	maxStagedTotal = 32 << 20
	// stagedOverhead is the memory that a staged train takes besides its bytes: a stagedTrain and two list elements.
	stagedOverhead = 3 * 48
)

// stagedTrains are the staged trains of all peers of a device. Lanes take the lock, so nobody keeps it during a handshake or a system call.
// It comes after Peer.mu.
type stagedTrains struct {
	mu    sync.Mutex
	order list.List // of *stagedTrain, oldest first
	bytes int       // their memory
}

// stagedQueue holds the trains that wait for a session with one peer, oldest first. stagedTrains.mu guards it, and all changes of the key pairs of
// engine.Peer. So no train is added once lanes may send with a session.
type stagedQueue struct {
	trains  list.List // of *stagedTrain
	bytes   int
	sending int         // while trains are being sent: the number of those that may be added, plus 1; else 0
	refusal drop.Reason // why no train is taken
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

// Stage implements engine.SlowPath. It decides, and hands the train over, under the lock of staged trains alone. So a handshake with the peer delays
// no lane.
func (p *Peer) Stage(train []byte, packets int) *session.Keypair {
	keys, why := p.stageable()
	if keys == nil && why == drop.None {
		keys, why = p.stage(&stagedTrain{peer: p, bytes: bytes.Clone(train), packets: packets})
	}
	switch {
	case keys != nil:
		return keys
	case why == drop.None:
		p.post(taskHandshake)
	default:
		p.dropForPeer(why, packets)
	}
	return nil
}

// stageable returns the key pair to send with, if there is one by now, or the reason for which no train is taken.
func (p *Peer) stageable() (*session.Keypair, drop.Reason) {
	p.dev.staged.mu.Lock()
	defer p.dev.staged.mu.Unlock()
	return p.stageableLocked()
}

// stageableLocked is stageable for a caller that holds the lock of staged trains.
func (p *Peer) stageableLocked() (*session.Keypair, drop.Reason) {
	why := p.staged.refusal
	if why == drop.TXDown && p.dev.starting.Load() {
		return nil, drop.None // a worker starts the peer before its turn
	}
	if keys := p.engine.Current.Load(); why == drop.None && keys.Usable(p.dev.clock()) {
		return keys, drop.None
	}
	return nil, why
}

// stage appends a train, unless stageable says otherwise by now. Beyond the limits the oldest trains are dropped: those of the peer first, then
// those of any. So a peer that has just become active keeps its first packets even while another host sends to many that do not answer.
func (p *Peer) stage(s *stagedTrain) (*session.Keypair, drop.Reason) {
	all, own := &p.dev.staged, &p.staged
	all.mu.Lock()
	defer all.mu.Unlock()
	if keys, why := p.stageableLocked(); keys != nil || why != drop.None {
		return keys, why
	}
	room := own.room()
	if room == 0 {
		return nil, drop.TXStagedOverflow
	}
	for own.trains.Len() > 0 && (own.trains.Len() >= room || own.bytes+s.size() > maxStagedBytes) {
		all.dropOldest(&own.trains, drop.TXStagedOverflow)
	}
	for all.order.Len() > 0 && all.bytes+s.size() > maxStagedTotal {
		all.dropOldest(&all.order, drop.TXStagedOverflow)
	}
	s.order = all.order.PushBack(s)
	own.trains.PushBack(s)
	own.bytes += s.size()
	all.bytes += s.size()
	return nil, drop.None
}

// room returns the number of trains that may wait.
func (q *stagedQueue) room() int {
	if q.sending > 0 {
		return q.sending - 1
	}
	return maxStaged
}

// updateRefusal follows a change of what decides whether trains are staged. The caller holds mu.
func (p *Peer) updateRefusal() {
	why := drop.None
	switch {
	case p.removed, p.running && p.handshake.remote == nil:
		why = drop.TXNoSession
	case !p.running:
		why = drop.TXDown
	}
	p.dev.staged.mu.Lock()
	defer p.dev.staged.mu.Unlock()
	p.staged.refusal = why
}

// publish sends the staged trains with keys, and then lets lanes send with them. Lanes may stage
// further ones meanwhile, which are sent, too. Each round leaves room for half of the trains that
// maxPublished still permits, so that it ends however fast they are. The caller holds mu.
func (p *Peer) publish(keys *session.Keypair) {
	for sent := 0; ; {
		trains := p.publishOrTake(keys, min((maxPublished-sent)/2, maxStaged))
		if len(trains) == 0 {
			return
		}
		sent += len(trains)
		for _, s := range trains {
			p.dev.engine.Transmit(p.engine, keys, s.bytes)
		}
	}
}

// publishOrTake lets lanes send with keys if no train is staged. Else it removes and returns all, and lets lanes add room trains until it is
// called again.
func (p *Peer) publishOrTake(keys *session.Keypair, room int) (trains []*stagedTrain) {
	all, own := &p.dev.staged, &p.staged
	all.mu.Lock()
	defer all.mu.Unlock()
	own.sending = room + 1
	if own.trains.Len() == 0 {
		own.sending = 0
		p.engine.Current.Store(keys)
	}
	for e := own.trains.Front(); e != nil; e = own.trains.Front() {
		s := e.Value.(*stagedTrain)
		all.remove(s)
		trains = append(trains, s)
	}
	return trains
}

// confirm notes that the peer has used keys, and lets lanes send with it if no train is staged. It returns false if keys is not the unconfirmed key
// pair any more. Lanes call it.
func (p *Peer) confirm(keys *session.Keypair) bool {
	p.dev.staged.mu.Lock()
	defer p.dev.staged.mu.Unlock()
	if p.engine.Unconfirmed.Load() != keys {
		return false
	}
	p.requests.confirmedKeys.Store(keys)
	if keys.Restricted() {
		return true
	}
	if p.staged.trains.Len() == 0 && p.staged.sending == 0 {
		p.engine.Current.Store(keys)
	}
	return true
}

// clearKeys removes the current and the unconfirmed key pair.
func (p *Peer) clearKeys() {
	p.dev.staged.mu.Lock()
	defer p.dev.staged.mu.Unlock()
	p.engine.Current.Store(nil)
	p.engine.Unconfirmed.Store(nil)
}

// clearCurrent removes the current key pair.
func (p *Peer) clearCurrent() {
	p.dev.staged.mu.Lock()
	defer p.dev.staged.mu.Unlock()
	p.engine.Current.Store(nil)
}

// setUnconfirmed sets the unconfirmed key pair, nil for none. Afterwards no lane confirms the one before.
func (p *Peer) setUnconfirmed(keys *session.Keypair) {
	p.dev.staged.mu.Lock()
	defer p.dev.staged.mu.Unlock()
	p.engine.Unconfirmed.Store(keys)
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

// hasStaged reports whether trains wait for a session with the peer. Lanes may add some at any time, and post taskHandshake.
func (p *Peer) hasStaged() bool {
	p.dev.staged.mu.Lock()
	defer p.dev.staged.mu.Unlock()
	return p.staged.trains.Len() > 0
}

// dropStaged drops all staged trains of the peer.
func (p *Peer) dropStaged() {
	all := &p.dev.staged
	all.mu.Lock()
	defer all.mu.Unlock()
	for p.staged.trains.Len() > 0 {
		all.dropOldest(&p.staged.trains, drop.TXStagedExpired)
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
