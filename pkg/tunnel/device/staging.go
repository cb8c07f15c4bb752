// SPDX-License-Identifier: Apache-2.0

package device

import (
	"container/list"
	"context"
	"log/slog"
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
	// maxStagedTotal bounds the memory of all staged trains of a device, however many peers are
	// unreachable. A peer can make a hub send to all others.
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
	peer    *Peer
	trains  list.List // of *stagedTrain
	bytes   int
	sending int         // while trains are being sent: the number of trains that may be added, plus 1; else 0
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

// stageable returns the key pair to send with, if there is one by now, or the reason for which no train is taken.
func (q *stagedQueue) stageable() (*session.Keypair, drop.Reason) {
	p := q.peer
	p.dev.staged.mu.Lock()
	defer p.dev.staged.mu.Unlock()
	return q.stageableLocked()
}

// stageableLocked is stageable for a caller that holds the lock of staged trains.
func (q *stagedQueue) stageableLocked() (*session.Keypair, drop.Reason) {
	p := q.peer
	why := q.refusal
	if why == drop.TXDown && p.dev.starting.Load() {
		return nil, drop.None // a worker starts the peer before its turn
	}
	if keys := p.engine.Current.Load(); why == drop.None && keys.Usable(p.dev.clock()) {
		return keys, drop.None
	}
	return nil, why
}

// add appends a train, unless stageable says otherwise by now. Beyond the limits the oldest trains
// are dropped, first of the peer, then of any. So a peer that has just become active keeps its
// first packets even while another host sends to many that do not answer.
func (q *stagedQueue) add(s *stagedTrain) (*session.Keypair, drop.Reason) {
	all, own := &q.peer.dev.staged, q
	all.mu.Lock()
	defer all.mu.Unlock()
	if keys, why := q.stageableLocked(); keys != nil || why != drop.None {
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

// updateRefusal follows a change that decides whether trains are staged. The caller holds mu.
func (q *stagedQueue) updateRefusal() {
	p := q.peer
	why := drop.None
	switch {
	case p.removed, p.running && p.handshake.remote == nil:
		why = drop.TXNoSession
	case !p.running:
		why = drop.TXDown
	}
	p.dev.staged.mu.Lock()
	defer p.dev.staged.mu.Unlock()
	q.refusal = why
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

// has reports whether trains wait for a session with the peer. Lanes may add some at any time, and post taskHandshake.
func (q *stagedQueue) has() bool {
	p := q.peer
	p.dev.staged.mu.Lock()
	defer p.dev.staged.mu.Unlock()
	return q.trains.Len() > 0
}

// drop drops all staged trains of the peer.
func (q *stagedQueue) drop() {
	all := &q.peer.dev.staged
	all.mu.Lock()
	defer all.mu.Unlock()
	for q.trains.Len() > 0 {
		all.dropOldest(&q.trains, drop.TXStagedExpired)
	}
}

// dropAll drops the staged trains of all peers.
func (a *stagedTrains) dropAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.order.Len() > 0 {
		a.dropOldest(&a.order, drop.TXStagedExpired)
	}
}

// checkStuck reports whether packets wait although nothing will send them. If so, and with restart, it sends them or starts a handshake.
func (q *stagedQueue) checkStuck(now int64, restart bool) bool {
	p := q.peer
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sessions.promoteNext()
	usable := p.engine.Current.Load().Usable(now)
	if !p.running || !q.has() || (!usable && p.handshake.pending()) || p.sessions.inUse().Restricted(now) {
		return false
	}
	if !restart {
		return true
	}
	q.logStuck(now, usable)
	if usable {
		p.sessions.publish(p.sessions.current.keys) // sends them
	} else {
		p.handshake.initiate(now)
	}
	p.armTimer(now)
	return true
}

// logStuck logs that packets waited although there was a session, or because nobody had started a handshake. The caller holds mu.
func (q *stagedQueue) logStuck(now int64, session bool) {
	p := q.peer
	level := p.dev.failuresLog.Level(now, slog.LevelWarn)
	log := p.log().With("peer", p.key)
	if session {
		log.Log(context.Background(), level, "packets to the peer stalled although there was a session, sending them now")
		return
	}
	log.Log(context.Background(), level, "packets to the peer stalled because no handshake was under way, starting a handshake now")
}
