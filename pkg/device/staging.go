// SPDX-License-Identifier: Apache-2.0

package device

import (
	"github.com/ropewalk/ropewalk/pkg/drop"
)

const (
	// maxStaged is how many elements may wait for a peer's session, as in the Linux driver.
	maxStaged = 128
	// maxStagedBytes bounds them for one peer, since an element may be a train of 64 KiB.
	maxStagedBytes = 1 << 20
	// maxStagedTotal bounds them for the device, in bytes, however many peers are unreachable.
	maxStagedTotal = 64 << 20
	// stagedFloor is what each peer may have beyond that, in bytes: enough for the first packets of its connections.
	stagedFloor = 64 << 10
)

// stagingQueue holds the elements that wait for a session, oldest first.
type stagingQueue struct {
	trains []stagedTrain
	bytes  int
}

// stagedTrain is one element, and how many packets it stands for.
type stagedTrain struct {
	bytes   []byte
	packets int
}

// Stage implements engine.SlowPath. It holds the peer's lock while it decides, so that nothing can be staged behind the
// back of a session that becomes current: order is kept.
func (p *Peer) Stage(element []byte, packets int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch keys := p.engine.Current.Load(); {
	case !p.running:
		p.dropForPeer(drop.TXDown, packets)
	case keys.Usable(p.dev.clock()):
		p.dev.engine.Transmit(p.engine, keys, element)
	case p.remote == nil:
		p.dropForPeer(drop.TXNoSession, packets)
	default:
		p.stage(stagedTrain{append([]byte(nil), element...), packets})
		p.post(taskHandshake)
	}
}

// stage appends e and lets the oldest go when there are too many. The caller holds mu.
func (p *Peer) stage(e stagedTrain) {
	q, n := &p.staged, len(e.bytes)
	for len(q.trains) > 0 && (len(q.trains) >= maxStaged || q.bytes+n > maxStagedBytes) {
		p.dropForPeer(drop.TXStagedOverflow, p.unstage().packets)
	}
	if q.bytes+n > stagedFloor && p.dev.staged.Load()+int64(n) > maxStagedTotal {
		p.dropForPeer(drop.TXStagedOverflow, e.packets)
		return
	}
	q.trains = append(q.trains, e)
	q.bytes += n
	p.dev.staged.Add(int64(n))
}

// unstage takes the oldest element out. The caller holds mu.
func (p *Peer) unstage() stagedTrain {
	q := &p.staged
	first := q.trains[0]
	q.trains[0] = stagedTrain{}
	q.trains = q.trains[1:]
	q.bytes -= len(first.bytes)
	p.dev.staged.Add(-int64(len(first.bytes)))
	return first
}

// dropStaged lets all go. The caller holds mu.
func (p *Peer) dropStaged() {
	for len(p.staged.trains) > 0 {
		p.dropForPeer(drop.TXStagedExpired, p.unstage().packets)
	}
	p.staged.trains = nil
}

// dropForPeer counts what was to be sent to the peer.
func (p *Peer) dropForPeer(why drop.Reason, n int) { p.dev.engine.DropForPeer(p.engine, why, n) }
