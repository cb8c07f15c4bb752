// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"github.com/ropewalk/ropewalk/pkg/packet"
	"github.com/ropewalk/ropewalk/pkg/session"
	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// runMeta is one run to be: what the engine must know of it until it has been sent.
type runMeta struct {
	peer     *Peer
	keys     *session.Keypair
	source   int  // of the port, where the run leaves from
	segSize  int  // bytes of each message but the last
	segments int  // messages
	bytes    int  // of all messages
	inner    int  // bytes of inner packets
	trains   int  // elements of the TUN
	closed   bool // nothing may follow: the last message is shorter than the others
	ecn      packet.ECN
	// layout is that of a train, which lies in one part; the zero Layout stands for single packets, one to a part.
	layout session.Layout

	first, last int // of pending.parts
	next        int // run of the same source, none at the end
}

// noNext ends a chain.
const noNext = -1

// maxPending bounds the runs of one batch, and their parts.
const maxPending = txSlots + 8

// pendingRuns is what one batch has to send, in chains: runs of one source in the order they came, each with its parts.
// Different sources carry different flows, so only the order within a chain matters.
type pendingRuns struct {
	runs    []runMeta
	buffers []runBuffer
	queues  []sourceQueue
	queueOf [underlay.MaxSources + 1]uint8 // of a source: 1 + index of its chain, 0 for none
}

// runBuffer is one message, or the messages of a train.
type runBuffer struct {
	bytes []byte
	next  int
}

// sourceQueue is the runs of one source.
type sourceQueue struct{ source, first, last int }

func newPending() pendingRuns {
	return pendingRuns{
		runs: make([]runMeta, 0, maxPending), buffers: make([]runBuffer, 0, maxPending), queues: make([]sourceQueue, 0, maxPending),
	}
}

// full says that nothing can be added.
func (p *pendingRuns) full() bool { return len(p.buffers) == cap(p.buffers) }

// add appends one part to a run.
func (p *pendingRuns) add(m *runMeta, b []byte) {
	at := len(p.buffers)
	p.buffers = append(p.buffers, runBuffer{bytes: b, next: noNext})
	if m.first == noNext {
		m.first = at
	} else {
		p.buffers[m.last].next = at
	}
	m.last = at
}

// enabled returns a new run behind the last of its source.
func (p *pendingRuns) open(source int) *runMeta {
	at := len(p.runs)
	p.runs = append(p.runs, runMeta{source: source, first: noNext, next: noNext})
	if c := p.queueOf[source]; c > 0 {
		p.runs[p.queues[c-1].last].next = at
		p.queues[c-1].last = at
	} else {
		p.queues = append(p.queues, sourceQueue{source: source, first: at, last: at})
		p.queueOf[source] = uint8(len(p.queues))
	}
	return &p.runs[at]
}

// last returns the last run of a source, nil if there is none. Only that one may grow: a message must not overtake
// another of its flow.
func (p *pendingRuns) last(source int) *runMeta {
	c := p.queueOf[source]
	if c == 0 {
		return nil
	}
	return &p.runs[p.queues[c-1].last]
}

// accepts tells whether a message of n bytes may ride in m: to the same peer under the same keys, with the same ECN, and
// in a form that UDP_SEGMENT can express.
func (m *runMeta) accepts(peer *Peer, keys *session.Keypair, ecn packet.ECN, n int) bool {
	return m.peer == peer && m.keys == keys && m.ecn == ecn && !m.closed && n <= m.segSize &&
		m.segments < underlay.MaxRunSegments && m.bytes+n <= underlay.MaxDatagramRun
}

// reset forgets all.
func (p *pendingRuns) reset() {
	for _, c := range p.queues {
		p.queueOf[c.source] = 0
	}
	p.runs, p.buffers, p.queues = p.runs[:0], p.buffers[:0], p.queues[:0]
}

// assemble turns what is pending into runs, source by source.
func (u *txBatch) assemble() {
	for _, c := range u.pending.queues {
		for i := c.first; i != noNext; i = u.pending.runs[i].next {
			u.pushRun(&u.pending.runs[i])
		}
	}
}

// pushRun appends a run and its parts.
func (u *txBatch) pushRun(m *runMeta) {
	from := len(u.parts)
	for i := m.first; i != noNext; i = u.pending.buffers[i].next {
		u.parts = append(u.parts, u.pending.buffers[i].bytes)
	}
	u.runs = append(u.runs, underlay.Run{
		To: m.peer.Endpoint.Load(), Source: m.source, Parts: u.parts[from:], SegSize: m.segSize, Segments: m.segments,
		ECN: m.ecn,
	})
	u.meta = append(u.meta, m)
}
