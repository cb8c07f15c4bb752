// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"math/rand/v2"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// Spray says how one flow may be sprayed. The zero Spray is never.
type Spray struct {
	Ports int // source ports of one flow, at least 2
	// Lanes is the number of the peer's receive lanes. Messages from port FirstPort + i, up to LastPort, arrive at lane i modulo Lanes. A flow
	// uses only ports of one lane.
	Lanes               int
	FirstPort, LastPort uint16
}

// Sprayed returns a copy of s, with the same loads, that sprays flows. port returns the port of a source.
func (s *Spread) Sprayed(spray Spray, port func(source int) uint16) *Spread {
	c := *s
	c.spray, c.sprayLanes = spray, nil
	if spray.Ports == 0 {
		return &c
	}
	c.sprayLanes = make([]int, len(s.sources))
	for i, source := range s.sources {
		if spray.Lanes == 1 {
			continue
		}
		if p := port(int(source)); p >= spray.FirstPort && p <= spray.LastPort {
			c.sprayLanes[i] = int(p-spray.FirstPort) % spray.Lanes
		} else {
			c.sprayLanes[i] = noLane // the peer selects the lane by hash
		}
	}
	return &c
}

// noLane is the lane of a source whose messages may arrive at any lane.
const noLane = -1

// Spray returns the argument of Sprayed.
func (s *Spread) Spray() Spray { return s.spray }

// Sprays returns the largest number of sources over which one flow may be sprayed, 0 for none. A
// lane of the peer may have fewer than Spray.Ports.
func (s *Spread) Sprays() (most int) {
	for _, source := range s.sources[:len(s.sprayLanes)] {
		most = max(most, len(s.SourcesWith(int(source))))
	}
	return most
}

// SourcesWith returns the sources over which a flow is sprayed that leaves from source home otherwise; home is first. None means that the flow
// cannot be sprayed.
func (s *Spread) SourcesWith(home int) []uint8 {
	at := -1
	for i, source := range s.sources {
		if int(source) == home {
			at = i
		}
	}
	if at < 0 || s.sprayLanes[at] == noLane {
		return nil
	}
	var list []uint8
	for i := range s.sources {
		j := (at + i) % len(s.sources)
		if s.sprayLanes[j] == s.sprayLanes[at] && !s.Loads.Blocks(int(s.sources[j])) && len(list) < s.Spray().Ports {
			list = append(list, s.sources[j])
		}
	}
	if len(list) < 2 {
		return nil
	}
	return list
}

// Spread selects the source ports of data messages to one peer. It is immutable; Peer.Spread is replaced. A flow whose source
// is not among the new ones keeps it until the flow pauses.
type Spread struct {
	sources []uint8
	Loads   *spread.Loads
	spray   Spray
	// sprayLanes are the peer's receive lanes of sources, if flows may be sprayed.
	sprayLanes []int
}

// noSources is shared by all peers without sources.
var noSources Spread

// NewSpread returns a Spread over the given sources of the port (underlay.Port.OpenSource), at most spread.MaxPorts.
// Without sources, all messages leave from the listen port, but flows are recorded, so that none is reordered when spread
// starts later.
func NewSpread(sources []uint8) *Spread {
	if len(sources) == 0 {
		return &noSources
	}
	return &Spread{sources: sources, Loads: spread.NewLoadsOf(sources, rand.Uint32())}
}

// Blocked returns a copy of s, which has sources, with the same loads. The flows of sources that are blocked by index leave from the
// listen port.
func (s *Spread) Blocked(blocked func(index int) bool) *Spread {
	c := *s
	c.Loads = s.Loads.Blocked(blocked)
	return &c
}

// AppendSent appends the number of messages that have left from each source, modulo 2^32. Copies of s share the counts.
func (s *Spread) AppendSent(b []uint32) []uint32 {
	for i := range s.sources {
		b = append(b, s.Loads.Sent(i))
	}
	return b
}

// SharesCounts reports whether one of s and o, which may be nil, is a copy of the other.
func (s *Spread) SharesCounts(o *Spread) bool {
	return o != nil && (s.Loads == o.Loads || s.Loads != nil && o.Loads != nil && s.Loads.SharesCounts(o.Loads))
}

// WakeAfter makes lanes call SlowPath.ProbeDue once n more messages than sent (AppendSent) have left from a source; 0 for never. It reports
// whether that is the case already.
func (s *Spread) WakeAfter(sent []uint32, n uint32) (passed bool) {
	for i := range s.sources {
		at := uint32(0)
		if n > 0 {
			at = max(sent[i]+n, 1)
		}
		passed = s.Loads.WakeAt(i, at) || passed
	}
	return passed
}

// CountSource counts n messages that have left from a source.
func (p *Peer) CountSource(source, n int) {
	if s := p.Spread.Load(); s != nil && s.Loads != nil && s.Loads.CountSent(source, n) {
		p.SlowPath.ProbeDue()
	}
}

// Sources returns the sources in lane order. The caller must not modify them.
func (s *Spread) Sources() []uint8 { return s.sources }
