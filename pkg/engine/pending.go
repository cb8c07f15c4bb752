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

// add appends one part to a run.
func (p *pending) add(m *runMeta, b []byte) {
	at := len(p.parts)
	p.parts = append(p.parts, part{bytes: b, next: none})
	if m.first == none {
		m.first = at
	} else {
		p.parts[m.last].next = at
	}
	m.last = at
}

// open returns a new run behind the last of its source.
func (p *pending) open(source int) *runMeta {
	at := len(p.runs)
	p.runs = append(p.runs, runMeta{source: source, first: none, next: none})
	if c := p.chainOf[source]; c > 0 {
		p.runs[p.chains[c-1].last].next = at
		p.chains[c-1].last = at
	} else {
		p.chains = append(p.chains, chain{source: source, first: at, last: at})
		p.chainOf[source] = uint8(len(p.chains))
	}
	return &p.runs[at]
}

// last returns the last run of a source, nil if there is none. Only that one may grow: a message must not overtake
// another of its flow.
func (p *pending) last(source int) *runMeta {
	c := p.chainOf[source]
	if c == 0 {
		return nil
	}
	return &p.runs[p.chains[c-1].last]
}

// admits tells whether a message of n bytes may ride in m: to the same peer under the same keys, with the same ECN, and
// in a form that UDP_SEGMENT can express.
func (m *runMeta) admits(peer *Peer, keys *session.Keypair, ecn packet.ECN, n int) bool {
	return m.peer == peer && m.keys == keys && m.ecn == ecn && !m.closed && n <= m.segSize &&
		m.segments < underlay.MaxRunSegments && m.bytes+n <= underlay.MaxDatagramRun
}

// reset forgets all.
func (p *pending) reset() {
	for _, c := range p.chains {
		p.chainOf[c.source] = 0
	}
	p.runs, p.parts, p.chains = p.runs[:0], p.parts[:0], p.chains[:0]
}

// assemble turns what is pending into runs, source by source.
func (u *unit) assemble() {
	for _, c := range u.pending.chains {
		for i := c.first; i != none; i = u.pending.runs[i].next {
			u.push(&u.pending.runs[i])
		}
	}
}

// push appends a run and its parts.
func (u *unit) push(m *runMeta) {
	from := len(u.parts)
	for i := m.first; i != none; i = u.pending.parts[i].next {
		u.parts = append(u.parts, u.pending.parts[i].bytes)
	}
	u.runs = append(u.runs, underlay.Run{
		To: m.peer.Endpoint.Load(), Source: m.source, Parts: u.parts[from:], SegSize: m.segSize, Segments: m.segments,
		ECN: m.ecn,
	})
	u.meta = append(u.meta, m)
}
