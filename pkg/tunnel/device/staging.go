// SPDX-License-Identifier: Apache-2.0

package device

import (
	"bytes"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

const (
	// maxStaged is the largest number of trains that wait for a peer's session, as in the Linux driver.
	maxStaged = 128
	// maxStagedBytes bounds the bytes staged for one peer, since a train may have 64 KiB.
	maxStagedBytes = 1 << 20
	// maxStagedTotal bounds the bytes staged for the whole device, however many peers are unreachable.
	maxStagedTotal = 64 << 20
	// stagedFloor is the number of bytes that each peer may stage beyond that: enough for the first packets of its connections.
	stagedFloor = 64 << 10
)

// stagingQueue holds the trains that wait for a session, oldest first.
type stagingQueue struct {
	trains []stagedTrain
	bytes  int
}

// stagedTrain is one train and its number of packets.
type stagedTrain struct {
	bytes   []byte
	packets int
}

// Stage implements engine.SlowPath. It holds the peer's lock while it decides. Nothing can thus be staged after a session
// has become current, and the order is kept.
func (p *Peer) Stage(train []byte, packets int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch keys := p.engine.Current.Load(); {
	case !p.running:
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

// stage appends a copy of train and drops the oldest trains beyond the limits. The caller holds mu.
func (p *Peer) stage(train []byte, packets int) {
	q, n := &p.staged, len(train)
	for len(q.trains) > 0 && (len(q.trains) >= maxStaged || q.bytes+n > maxStagedBytes) {
		p.dropForPeer(drop.TXStagedOverflow, p.unstage().packets)
	}
	if q.bytes+n > stagedFloor && p.dev.staged.Load()+int64(n) > maxStagedTotal {
		p.dropForPeer(drop.TXStagedOverflow, packets)
		return
	}
	q.trains = append(q.trains, stagedTrain{bytes.Clone(train), packets})
	q.bytes += n
	p.dev.staged.Add(int64(n))
}

// unstage removes and returns the oldest train. The caller holds mu.
func (p *Peer) unstage() stagedTrain {
	q := &p.staged
	first := q.trains[0]
	q.trains[0] = stagedTrain{}
	q.trains = q.trains[1:]
	q.bytes -= len(first.bytes)
	p.dev.staged.Add(-int64(len(first.bytes)))
	return first
}

// dropStaged drops all staged trains. The caller holds mu.
func (p *Peer) dropStaged() {
	for len(p.staged.trains) > 0 {
		p.dropForPeer(drop.TXStagedExpired, p.unstage().packets)
	}
	p.staged.trains = nil
}

// dropForPeer counts n packets to the peer as dropped.
func (p *Peer) dropForPeer(why drop.Reason, n int) { p.dev.engine.DropForPeer(p.engine, why, n) }
