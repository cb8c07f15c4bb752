// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/rand/v2"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// flowsLog2 is the size of each lane's flow table: 4,096 entries, 32 KiB, which stay in the cache.
const flowsLog2 = 12

// Spread selects the source ports of data messages to one peer. It is immutable; Peer.Spread is replaced. A flow whose source
// is not among the new ones keeps it until the flow pauses.
type Spread struct {
	sources []uint8
	loads   *spread.Loads
	spray   Spray
	// sprayLanes are the peer's receive lanes of sources, if flows may be sprayed.
	sprayLanes []int
}

// noSources is that of all peers without.
var noSources Spread

// NewSpread returns a Spread over the given sources of the port (underlay.Port.OpenSource), at most spread.MaxPorts.
// Without sources, all messages leave from the listen port, but flows are recorded, so that none is reordered when spread
// starts later.
func NewSpread(sources []uint8) *Spread {
	if len(sources) == 0 {
		return &noSources
	}
	return &Spread{sources: sources, loads: spread.NewLoadsOf(sources, rand.Uint32())}
}

// Blocked returns a copy of s, which has sources, with the same loads. The flows of sources that are blocked by index leave from the
// listen port.
func (s *Spread) Blocked(blocked func(index int) bool) *Spread {
	c := *s
	c.loads = s.loads.Blocked(blocked)
	return &c
}

// AppendSent appends the number of messages that have left from each source, modulo 2^32. Copies of s share the counts.
func (s *Spread) AppendSent(b []uint32) []uint32 {
	for i := range s.sources {
		b = append(b, s.loads.Sent(i))
	}
	return b
}

// SharesCounts reports whether one of s and o, which may be nil, is a copy of the other.
func (s *Spread) SharesCounts(o *Spread) bool {
	return o != nil && (s.loads == o.loads || s.loads != nil && o.loads != nil && s.loads.SharesCounts(o.loads))
}

// WakeAfter makes lanes call SlowPath.ProbeDue once n more messages than sent (AppendSent) have left from a source; 0 for never. It reports
// whether that is the case already.
func (s *Spread) WakeAfter(sent []uint32, n uint32) (passed bool) {
	for i := range s.sources {
		at := uint32(0)
		if n > 0 {
			at = max(sent[i]+n, 1)
		}
		passed = s.loads.WakeAt(i, at) || passed
	}
	return passed
}

// countSource counts n messages that have left from a source.
func (p *Peer) countSource(source, n int) {
	if s := p.Spread.Load(); s != nil && s.loads != nil && s.loads.CountSent(source, n) {
		p.SlowPath.ProbeDue()
	}
}

// Sources returns the sources in lane order. The caller must not modify them.
func (s *Spread) Sources() []uint8 { return s.sources }

// chooseSource returns the source for the parsed train to p.
func (t *transmitter) chooseSource(p *Peer) int {
	s := p.Spread.Load()
	if s == nil || t.flowlets == nil {
		return 0
	}
	f := spread.Flow{Peer: p.number, Hash: t.flowHash()}
	if t.queue.delays(waitingFlow{p, f.Hash}, t.flowlets.Lane(s.loads, f, t.now), t.now) {
		t.flowlets.Keep(f, t.now)
	}
	if s.loads == nil {
		t.flowlets.Note(f, t.now)
		return 0
	}
	source := t.flowlets.Choose(s.loads, f, t.now, t.train.Len()) // package spread calls the source a lane
	if s.spray.Ports > 0 {
		t.noteElephant(p)
	}
	if s.loads.Blocks(source) {
		return 0
	}
	return source
}

// noteStaged records the flow of the parsed train to p: once there is a session, it will leave from the listen port.
func (t *transmitter) noteStaged(p *Peer) {
	if p.Spread.Load() != nil {
		t.flowlets.Note(spread.Flow{Peer: p.number, Hash: t.flowHash()}, t.now)
	}
}

// noteSource counts authentic messages in e by their source port, and updates the endpoint if roam is set. Elements of different flows are not handled in the order of their
// arrival, so only the newest message of the session moves the endpoint: one that waited does not move it back.
func (p *Peer) noteSource(keys *session.Keypair, e *element, messages int, roam bool) {
	to := p.Endpoint.Load()
	if to == nil {
		if roam {
			p.SlowPath.Roam(e.From)
		}
		return
	}
	at, gathered := p.listenEndpoint(to, e.From)
	if gathered {
		p.countPort(e.From.Dst.Port(), messages)
	}
	if !roam {
		return
	}
	if gathered {
		p.MarkHeard()
	}
	if *to != at && keys.Newest(e.newest) {
		p.SlowPath.Roam(at)
	}
}

// listenEndpoint returns the endpoint of a peer that has sent from the endpoint from. gathered reports that it came from
// one of the peer's spread source ports. The listen port is then that of known, if the peer has not moved: a NAT at the new address may map it
// to any other. There the peer is reached at the port that it has sent from, until a hello names its listen port.
func (p *Peer) listenEndpoint(known *underlay.Endpoint, from underlay.Endpoint) (at underlay.Endpoint, gathered bool) {
	if *known == from {
		return from, false
	}
	ports := p.Gathered.Load()
	if ports == nil || !ports.Contains(from.Dst.Port()) {
		return from, false
	}
	if from.Dst.Addr() == known.Dst.Addr() || !p.SendsHellos.Load() {
		from.Dst = netip.AddrPortFrom(from.Dst.Addr(), known.Dst.Port())
	}
	return from, true
}

// MarkHeard sets Heard, and calls SlowPath.OnHeard if it was not set.
func (p *Peer) MarkHeard() {
	if !p.Heard.Load() && p.Heard.CompareAndSwap(false, true) {
		p.SlowPath.OnHeard()
	}
}
