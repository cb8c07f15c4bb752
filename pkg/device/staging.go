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
	elements []staged
	bytes    int
}

// staged is one element, and how many packets it stands for.
type staged struct {
	bytes   []byte
	packets int
}

// Stage implements engine.Owner. It holds the peer's lock while it decides, so that nothing can be staged behind the
// back of a session that becomes current: order is kept.
func (p *Peer) Stage(element []byte, packets int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch keys := p.lane.Current.Load(); {
	case !p.running:
		p.lose(drop.TXDown, packets)
	case keys.Usable(p.dev.clock()):
		p.dev.engine.Transmit(p.lane, keys, element)
	case p.remote == nil:
		p.lose(drop.TXNoSession, packets)
	default:
		p.stage(staged{append([]byte(nil), element...), packets})
		p.post(taskHandshake)
	}
}

// stage appends e and lets the oldest go when there are too many. The caller holds mu.
func (p *Peer) stage(e staged) {
	q, n := &p.staged, len(e.bytes)
	for len(q.elements) > 0 && (len(q.elements) >= maxStaged || q.bytes+n > maxStagedBytes) {
		p.lose(drop.TXStagedOverflow, p.unstage().packets)
	}
	if q.bytes+n > stagedFloor && p.dev.staged.Load()+int64(n) > maxStagedTotal {
		p.lose(drop.TXStagedOverflow, e.packets)
		return
	}
	q.elements = append(q.elements, e)
	q.bytes += n
	p.dev.staged.Add(int64(n))
}

// unstage takes the oldest element out. The caller holds mu.
func (p *Peer) unstage() staged {
	q := &p.staged
	first := q.elements[0]
	q.elements[0] = staged{}
	q.elements = q.elements[1:]
	q.bytes -= len(first.bytes)
	p.dev.staged.Add(-int64(len(first.bytes)))
	return first
}

// dropStaged lets all go. The caller holds mu.
func (p *Peer) dropStaged() {
	for len(p.staged.elements) > 0 {
		p.lose(drop.TXStagedExpired, p.unstage().packets)
	}
	p.staged.elements = nil
}

// lose counts what was to be sent to the peer.
func (p *Peer) lose(why drop.Reason, n int) { p.dev.engine.Lose(p.lane, why, n) }
