// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"errors"
	"net/netip"
	"slices"
)

// ErrSelectionStands says that the Selection in force cannot be changed or ended before the Port is closed.
var ErrSelectionStands = errors.New("the selection of lanes stands until the port is closed")

// Selection says at which lane a datagram for the canonical port arrives, by where it comes from: what has one source has
// one lane, so that flows stay in order. It is never by CPU or NIC queue, which change under a flow that does not.
//
// The zero Selection selects nothing.
type Selection struct {
	// First and Last are the ends of the range out of which senders without a plan take their sources: port First + i goes
	// to lane i modulo the number of lanes, and any ports that stand together fall evenly. No First, or a Last below it, is
	// no range.
	First, Last uint16
	// Plans come before the range. Of two for one address the first counts.
	Plans []Plan
}

// Plan is the set of source ports that a peer was told to use, in the order of the lanes.
type Plan struct {
	// From is the peer's address; never 4-in-6, never with a zone.
	From netip.Addr
	// Ports[i] goes to lane i modulo the number of lanes. Should one stand there twice, its first place counts.
	Ports []uint16
}

// Selector is a Port whose lanes can be told what to receive. One that is none, or that refuses, chooses by itself: by a
// hash, say, that keeps what has one source on one lane.
type Selector interface {
	// SetSelection puts s into force in place of the one before, at once for all lanes: what arrives after it has returned
	// goes where Selection.Lane says, and where the Port chooses if that says nothing. A datagram whose lane changes may
	// overtake those that wait at its old one. s may be changed afterwards.
	//
	// It returns how many of the plans, from the first, it has room for; those that had room keep it as long as none
	// before them grows. Errors: net.ErrClosed; ErrSelectionStands, after which the one before is still in force; or the
	// operating system's, after which nothing is selected. Features tells which.
	SetSelection(s *Selection) (plans int, err error)
}

// Selects tells whether s says anything.
func (s *Selection) Selects() bool { return s.hasRange() || len(s.Plans) > 0 }

func (s *Selection) hasRange() bool { return s.First != 0 && s.First <= s.Last }

// Lane returns the lane, 0 <= lane < lanes, of what comes from there; ok is false where s says nothing.
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

// Equal tells whether s and o say the same in the same order.
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
