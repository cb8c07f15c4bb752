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
)

// stagingQueue holds the elements that wait for a session, oldest first.
type stagingQueue struct {
	elements [][]byte
	bytes    int
}

// Stage implements engine.Owner. It holds the peer's lock while it decides, so that nothing can be staged behind the
// back of a session that becomes current: order is kept.
func (p *Peer) Stage(element []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running {
		p.dev.engine.Slow.Add(drop.TXDown, 1)
		return
	}
	if keys := p.lane.Current.Load(); usable(keys, p.dev.clock()) {
		p.dev.engine.Transmit(p.lane, keys, element)
		return
	}
	p.stage(element)
	p.post(taskHandshake)
}

// stage appends a copy of element and lets the oldest go when there are too many. The caller holds mu.
func (p *Peer) stage(element []byte) {
	q := &p.staged
	for len(q.elements) > 0 && (len(q.elements) >= maxStaged || q.bytes+len(element) > maxStagedBytes) {
		p.dev.engine.Slow.Add(drop.TXStagedOverflow, 1)
		p.unstage()
	}
	if p.dev.staged.Load()+int64(len(element)) > maxStagedTotal {
		p.dev.engine.Slow.Add(drop.TXStagedOverflow, 1)
		return
	}
	q.elements = append(q.elements, append([]byte(nil), element...))
	q.bytes += len(element)
	p.dev.staged.Add(int64(len(element)))
}

// unstage takes the oldest element out. The caller holds mu.
func (p *Peer) unstage() []byte {
	q := &p.staged
	first := q.elements[0]
	q.elements[0] = nil
	q.elements = q.elements[1:]
	q.bytes -= len(first)
	p.dev.staged.Add(-int64(len(first)))
	return first
}

// dropStaged lets all go. The caller holds mu.
func (p *Peer) dropStaged() {
	p.dev.engine.Slow.Add(drop.TXStagedExpired, len(p.staged.elements))
	for len(p.staged.elements) > 0 {
		p.unstage()
	}
	p.staged.elements = nil
}
