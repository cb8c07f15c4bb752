// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"

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
	blocked [4]uint64     // the sources that the path does not admit, as bits
	checkAt *atomic.Int64 // see CheckAt
	spray   Spray
	// sprayLanes are the peer's receive lanes of sources, if flows may be sprayed.
	sprayLanes []int
}

// noCheck is the time of CheckAt for never.
const noCheck = math.MaxInt64

// NewSpread returns a Spread over the given sources of the port (underlay.Port.OpenSource), at most spread.MaxPorts.
// Without sources, all messages leave from the listen port, but flows are recorded, so that none is reordered when spread
// starts later.
func NewSpread(sources []uint8) *Spread {
	if len(sources) == 0 {
		return &Spread{}
	}
	s := &Spread{sources: sources, loads: spread.NewLoadsOf(sources, rand.Uint32()), checkAt: new(atomic.Int64)}
	s.checkAt.Store(noCheck)
	return s
}

// Blocked returns a copy of s, which has sources, with the same loads. The flows of sources that are blocked by index leave from the
// listen port.
func (s *Spread) Blocked(blocked func(index int) bool) *Spread {
	c := *s
	c.blocked = [4]uint64{}
	for i, source := range s.sources {
		if blocked(i) {
			c.blocked[source/64] |= 1 << (source % 64)
		}
	}
	return &c
}

// IsBlocked reports whether some source is blocked.
func (s *Spread) IsBlocked() bool { return s.blocked != [4]uint64{} }

// CheckAt makes lanes call SlowPath.CheckSources once, at the first train that is spread at the given time or later. Copies share the time.
func (s *Spread) CheckAt(earliest int64) {
	if s.checkAt != nil {
		s.checkAt.Store(earliest)
	}
}

// InUse reports whether data has left from the source with that index in the last second or so.
func (s *Spread) InUse(index int, now int64) bool { return s.loads.Bytes(index, now) > 0 }

// requestCheck calls SlowPath.CheckSources if it is time.
func (s *Spread) requestCheck(p *Peer, now int64) {
	if at := s.checkAt.Load(); now >= at && s.checkAt.CompareAndSwap(at, noCheck) {
		p.SlowPath.CheckSources()
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
	if t.queue.delays(waitingFlow{p, t.flowHash()}, t.flowlets.Lane(t.flowHash()), t.now) {
		t.flowlets.Keep(t.flowHash(), t.now)
	}
	if s.loads == nil {
		t.flowlets.Note(t.flowHash(), t.now)
		return 0
	}
	source := t.flowlets.Choose(s.loads, t.flowHash(), t.now, t.train.Len()) // package spread calls the source a lane
	s.requestCheck(p, t.now)                                                 // after Choose, so that the source is in use
	if s.spray.Ports > 0 {
		t.noteElephant(p)
	}
	if s.blocks(source) {
		return 0
	}
	return source
}

// noteStaged records the flow of the parsed train to p: once there is a session, it will leave from the listen port.
func (t *transmitter) noteStaged(p *Peer) {
	if p.Spread.Load() != nil {
		t.flowlets.Note(t.flowHash(), t.now)
	}
}

// noteSource updates the endpoint after authentic messages in e. Elements of different flows are not handled in the order of their
// arrival, so only the newest message of the session moves the endpoint: one that waited does not move it back.
func (p *Peer) noteSource(keys *session.Keypair, e *element) {
	to := p.Endpoint.Load()
	if to == nil {
		p.SlowPath.Roam(e.From)
		return
	}
	at, gathered := p.listenEndpoint(to, e.From)
	if gathered {
		p.MarkHeard()
	}
	if *to != at && keys.Newest(e.newest) {
		p.SlowPath.Roam(at)
	}
}

// listenEndpoint returns the endpoint of a peer that has sent from the endpoint from. gathered reports that it came from
// one of the peer's spread source ports. The listen port is then that of known.
func (p *Peer) listenEndpoint(known *underlay.Endpoint, from underlay.Endpoint) (at underlay.Endpoint, gathered bool) {
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

// MarkHeard sets Heard, and calls SlowPath.OnHeard if it was not set.
func (p *Peer) MarkHeard() {
	if !p.Heard.Load() && p.Heard.CompareAndSwap(false, true) {
		p.SlowPath.OnHeard()
	}
}
