// SPDX-License-Identifier: Apache-2.0

package send

import (
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// runMeta is the metadata of one run until it has been sent.
type runMeta struct {
	peer     *lane.Peer
	keys     *session.Keypair
	source   int  // the source of the port from which the run is sent
	segSize  int  // bytes of each message but the last
	segments int  // messages
	bytes    int  // of all messages
	inner    int  // bytes of inner packets
	trains   int  // trains read from the TUN
	closed   bool // no message may follow, since the last is shorter than the others
	ecn      packet.ECN
	streamed bool   // the counters belong to a stream
	counter  uint64 // the first of them
	// layout is the layout of a train, which is one buffer. The zero Layout means single packets, one per buffer.
	layout session.Layout
	// train is split into the buffer when the run is sealed, from packet skip on. It refers to the buffer that was read.
	train offload.Train
	skip  int

	first, last int // indices in pendingRuns.buffers
	next        int // next run of the same source, noNext at the end
}

// isControl reports whether the run is neither data nor a keepalive.
func (m *runMeta) isControl() bool { return m.inner == 0 && m.bytes > m.segments*wire.DataOverhead }

// noNext ends a linked list.
const noNext = -1

// maxPending bounds the runs of one batch, and their buffers.
const maxPending = Slots + 8

// pendingRuns holds the runs of one batch in a queue per source, in order of arrival. Different sources carry different flows,
// so only the order within a queue matters.
type pendingRuns struct {
	runs    []runMeta
	buffers []runBuffer
	queues  []sourceQueue
	queueOf [underlay.MaxSources + 1]uint8 // by source: 1 + index of its queue, 0 for none
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

// full reports whether no message can be added.
func (p *pendingRuns) full() bool { return len(p.buffers) == cap(p.buffers) }

// add appends one buffer to a run.
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

// open appends a new run to the queue of its source and returns it.
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

// last returns the last run of a source, nil if there is none. Only the last run may grow, to keep the order of each flow.
func (p *pendingRuns) last(source int) *runMeta {
	c := p.queueOf[source]
	if c == 0 {
		return nil
	}
	return &p.runs[p.queues[c-1].last]
}

// accepts reports whether a message of n bytes fits into m: same peer, same keys, same ECN, and sizes that UDP_SEGMENT can
// express.
func (m *runMeta) accepts(peer *lane.Peer, keys *session.Keypair, ecn packet.ECN, n int) bool {
	return m.peer == peer && m.keys == keys && m.ecn == ecn && !m.closed && n <= m.segSize &&
		m.segments < underlay.MaxRunSegments && m.bytes+n <= underlay.MaxDatagramRun
}

// reset removes all runs.
func (p *pendingRuns) reset() {
	for _, c := range p.queues {
		p.queueOf[c.source] = 0
	}
	p.runs, p.buffers, p.queues = p.runs[:0], p.buffers[:0], p.queues[:0]
}

// assemble builds the runs to send from the pending ones, source by source.
func (b *txBatch) assemble() {
	for _, c := range b.pending.queues {
		for i := c.first; i != noNext; i = b.pending.runs[i].next {
			b.pushRun(&b.pending.runs[i])
		}
	}
}

// pushRun appends a run and its buffers.
func (b *txBatch) pushRun(m *runMeta) {
	from := len(b.parts)
	for i := m.first; i != noNext; i = b.pending.buffers[i].next {
		b.parts = append(b.parts, b.pending.buffers[i].bytes)
	}
	b.runs = append(b.runs, underlay.Run{
		To: m.peer.Endpoint.Load(), Source: m.source, Parts: b.parts[from:], SegSize: m.segSize, Segments: m.segments,
		ECN: m.ecn, Peer: m.peer.Number,
	})
	b.meta = append(b.meta, m)
}
