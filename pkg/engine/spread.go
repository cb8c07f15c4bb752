// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/rand/v2"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/spread"
	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// flowsLog2 gives each lane's flow table 4,096 entries: 32 KiB, which stay in the cache.
const flowsLog2 = 12

// Spread is how data messages to one peer take their source ports. It does not change; Peer.Spread is replaced. A flow
// whose source is not among the new ones leaves it when it pauses.
type Spread struct {
	sources []uint8
	loads   *spread.Loads
}

// NewSpread returns a Spread over the given sources of the port (underlay.Port.OpenSource), at most spread.MaxPorts.
// Without any, everything leaves from the canonical port, but flows are noted, so that none overtakes itself when it is
// spread later.
func NewSpread(sources []uint8) *Spread {
	if len(sources) == 0 {
		return &Spread{}
	}
	return &Spread{sources: sources, loads: spread.NewLoadsOf(sources, rand.Uint32())}
}

// Sources are the sources in lane order. They must not be changed.
func (s *Spread) Sources() []uint8 { return s.sources }

// chooseSource returns where the parsed element, for p, leaves from.
func (t *transmitter) chooseSource(p *Peer) int {
	s := p.Spread.Load()
	switch {
	case s == nil || t.flows == nil:
		return 0
	case s.loads == nil:
		t.flows.Note(t.train.FlowHash(), t.now)
		return 0
	}
	return t.flows.Choose(s.loads, t.train.FlowHash(), t.now, t.train.Len()) // a lane of the table is a source
}

// stage notes that the parsed element, for p, leaves from the canonical port when there is a session.
func (t *transmitter) stage(p *Peer) {
	if p.Spread.Load() != nil {
		t.flows.Note(t.train.FlowHash(), t.now)
	}
}

// noteSource notes that the peer has sent from there.
func (p *Peer) noteSource(from underlay.Endpoint) {
	to := p.Endpoint.Load()
	if to == nil {
		p.SlowPath.Roam(from)
		return
	}
	at, gathered := p.canonicalEndpoint(to, from)
	if gathered {
		p.MarkHeard()
	}
	if *to != at {
		p.SlowPath.Roam(at)
	}
}

// canonicalEndpoint returns where a peer, known to be at known, is when it sends from there. gathered tells that it did so from one of
// the ports that it spreads over; its canonical one is then where it was.
func (p *Peer) canonicalEndpoint(known *underlay.Endpoint, from underlay.Endpoint) (at underlay.Endpoint, gathered bool) {
	if *known == from {
		return from, false
	}
	ports := p.Gathered.Load()
	if ports == nil || !ports.Contains(from.Dst.Port()) {
		return from, false
	}
	from.Dst = netip.AddrPortFrom(from.Dst.Addr(), known.Dst.Port())
	return from, true
}

// MarkHeard sets Heard, and tells the owner if it was not set.
func (p *Peer) MarkHeard() {
	if !p.Heard.Load() && p.Heard.CompareAndSwap(false, true) {
		p.SlowPath.OnHeard()
	}
}
