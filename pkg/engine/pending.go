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

// none ends a chain.
const none = -1

// maxPending bounds the runs of one batch, and their parts.
const maxPending = txSlots + 8

// pending is what one batch has to send, in chains: runs of one source in the order they came, each with its parts.
// Different sources carry different flows, so only the order within a chain matters.
type pending struct {
	runs    []runMeta
	parts   []part
	chains  []chain
	chainOf [underlay.MaxSources + 1]uint8 // of a source: 1 + index of its chain, 0 for none
}

// part is one message, or the messages of a train.
type part struct {
	bytes []byte
	next  int
}

// chain is the runs of one source.
type chain struct{ source, first, last int }

func newPending() pending {
	return pending{
		runs: make([]runMeta, 0, maxPending), parts: make([]part, 0, maxPending), chains: make([]chain, 0, maxPending),
	}
}

// full says that nothing can be added.
func (p *pending) full() bool { return len(p.parts) == cap(p.parts) }

// add appends a run of one part, or lets its only message ride in the last run of its source.
func (p *pending) add(b []byte, m runMeta) {
	at := len(p.parts)
	p.parts = append(p.parts, part{bytes: b, next: none})
	if c := p.chainOf[m.source]; c > 0 {
		if last := &p.runs[p.chains[c-1].last]; last.admits(&m) {
			p.parts[last.last].next = at
			last.last = at
			last.join(&m)
			return
		}
	}
	m.first, m.last, m.next = at, at, none
	p.runs = append(p.runs, m)
	p.chain(m.source, len(p.runs)-1)
}

// chain hangs a run behind the last of its source.
func (p *pending) chain(source, run int) {
	if c := p.chainOf[source]; c > 0 {
		p.runs[p.chains[c-1].last].next = run
		p.chains[c-1].last = run
		return
	}
	p.chains = append(p.chains, chain{source: source, first: run, last: run})
	p.chainOf[source] = uint8(len(p.chains))
}

// admits tells whether the only message of next may ride in m: to the same peer with the same ECN, and in a form that
// UDP_SEGMENT can express. The caller asks only for the last run of a source: a message must not overtake its flow's.
func (m *runMeta) admits(next *runMeta) bool {
	return m.peer == next.peer && m.keys == next.keys && m.ecn == next.ecn && !m.closed && next.layout.Segments == 0 &&
		next.bytes <= m.segSize && m.segments < underlay.MaxRunSegments && m.bytes+next.bytes <= underlay.MaxDatagramRun
}

func (m *runMeta) join(next *runMeta) {
	m.segments++
	m.bytes += next.bytes
	m.inner += next.inner
	m.trains += next.trains
	m.closed = next.bytes < m.segSize
}

// reset forgets all.
func (p *pending) reset() {
	for _, c := range p.chains {
		p.chainOf[c.source] = 0
	}
	p.runs, p.parts, p.chains = p.runs[:0], p.parts[:0], p.chains[:0]
}

// assemble turns what is pending into runs, source by source.
func (t *transmitter) assemble() {
	for _, c := range t.pending.chains {
		for i := c.first; i != none; i = t.pending.runs[i].next {
			t.push(&t.pending.runs[i])
		}
	}
}

// push appends a run and its parts.
func (t *transmitter) push(m *runMeta) {
	from := len(t.parts)
	for i := m.first; i != none; i = t.pending.parts[i].next {
		t.parts = append(t.parts, t.pending.parts[i].bytes)
	}
	t.runs = append(t.runs, underlay.Run{
		To: m.peer.Endpoint.Load(), Source: m.source, Parts: t.parts[from:], SegSize: m.segSize, Segments: m.segments,
		ECN: m.ecn,
	})
	t.meta = append(t.meta, m)
}
