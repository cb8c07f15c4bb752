// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"errors"
	"net/netip"
	"slices"
)

// ErrSelectionFixed is the error for a Selection that cannot be changed or removed until the Port,
// with its UDP sockets, is closed. Some kernels cannot do it safely.
var ErrSelectionFixed = errors.New("the lane selection cannot change until the UDP sockets are closed")

// Selection maps the source of a datagram for the listen port to a lane. All datagrams of one source have one lane,
// so flows stay in order. It never depends on CPU or NIC queue, which may change during a flow.
//
// The zero Selection selects nothing.
type Selection struct {
	// First and Last are the ends of the range for source ports that no plan has: peers without a plan take theirs from it. Port First + i
	// goes to lane i modulo the number of lanes, so adjacent ports are distributed evenly. If First is 0, or Last below
	// First, there is no range.
	First, Last uint16
	// A plan's ports take precedence over the range, which still applies to the peer's other ports. Of two plans for one address the first counts.
	Plans []Plan
}

// Plan is the set of source ports that a peer was asked to use, in the order of the lanes.
type Plan struct {
	// From is the peer's address; never 4-in-6, never with a zone.
	From netip.Addr
	// Ports[i] goes to lane i modulo the number of lanes. If a port occurs twice, its first position counts.
	Ports []uint16
}

// Selector is a Port that can select the receiving lane of a datagram. A Port that is no Selector,
// or refuses a Selection, chooses by itself, for example by a hash that keeps each source on one
// lane.
type Selector interface {
	// SetSelection replaces the selection for all lanes at once. Datagrams that arrive after it has returned go to the
	// lane of Selection.Lane. If that selects none, the Port chooses. A datagram whose lane changes may overtake
	// others that wait at its old lane. The caller may change s afterwards.
	//
	// It returns the number of plans, from the first, that fit into its program. A plan that fits
	// still fits in a later Selection, unless a plan before it has more ports there. Errors:
	// net.ErrClosed; ErrSelectionFixed, after which the former selection is still active; or the
	// operating system's, after which nothing is selected. Port.Features reports the present
	// state.
	SetSelection(s *Selection) (plans int, err error)
}

// Selects reports whether s selects anything.
func (s *Selection) Selects() bool { return s.hasRange() || len(s.Plans) > 0 }

func (s *Selection) hasRange() bool { return s.First != 0 && s.First <= s.Last }

// Lane returns the lane of datagrams from an address, which is not 4-in-6: 0 <= lane < lanes. ok is false if s does not select one.
func (s *Selection) Lane(from netip.AddrPort, lanes int) (lane int, ok bool) {
	own := slices.IndexFunc(s.Plans, func(p Plan) bool { return p.From == from.Addr() })
	if own >= 0 {
		if place := slices.Index(s.Plans[own].Ports, from.Port()); place >= 0 {
			return place % lanes, true
		}
	}
	if !s.hasRange() || from.Port() < s.First || from.Port() > s.Last {
		return 0, false
	}
	return int(from.Port()-s.First) % lanes, true
}

// Equal reports whether s and o have the same content in the same order.
func (s *Selection) Equal(o *Selection) bool {
	return s.First == o.First && s.Last == o.Last && slices.EqualFunc(s.Plans, o.Plans, func(a, b Plan) bool {
		return a.From == b.From && slices.Equal(a.Ports, b.Ports)
	})
}

// Clone returns a copy that shares nothing with s.
func (s *Selection) Clone() Selection {
	c := *s
	c.Plans = slices.Clone(s.Plans)
	for i := range c.Plans {
		c.Plans[i].Ports = slices.Clone(c.Plans[i].Ports)
	}
	return c
}
