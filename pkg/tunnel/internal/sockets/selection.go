// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// maxPlans is the largest number of peers' plans in the lane selection. It bounds the time of a change. The lanes for
// further peers are selected by the range of source ports: with so many flows they are loaded evenly enough.
const maxPlans = 128

var errNoSelector = errors.New("the underlay chooses lanes itself")

// selectingPort is a port with selectable receive lanes.
type selectingPort interface {
	underlay.Port
	underlay.Selector
}

// Selection selects the receive lane of incoming messages on the present port. For a peer with a port plan, the lane is
// the source port's index in the plan. For other peers that spread, it is the port's index in the range. A plan is installed
// before the peer learns it, and the plan of the next session is nearly always the same. A different plan means that our
// NIC's queues have changed. Messages in flight from that peer may then be reordered once, as between the queues.
type Selection struct {
	Log *slog.Logger

	mu        sync.Mutex
	port      selectingPort // nil while there is none
	spread    underlay.Selection
	owners    []any        // of spread.Plans, by index
	ports     spread.Ports // the installed range
	installed int          // installed plans
	active    bool         // a selection by source port is installed
	reason    error        // why none is installed, or not all plans
	logged    bool         // the failure was logged
}

// Reset sets the port, nil for none, and the range of source ports. An empty range disables the selection.
func (s *Selection) Reset(port underlay.Port, ports spread.Ports) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logged = false
	s.spread.First, s.spread.Last = 0, 0
	if ports.Len() > 0 {
		s.spread.First, s.spread.Last = ports.First, ports.Last
	}
	selecting, ok := port.(selectingPort)
	s.port, s.installed, s.active = selecting, 0, false
	switch {
	case port == nil:
		s.reason = ErrDown
	case !ok:
		s.reason = errNoSelector
	default:
		s.apply()
	}
}

// Plan replaces the plan of owner by one for messages from the address from; no ports mean no plan. If two owners have the
// same address, the first keeps its plan, so that neither can move the flows of the other.
func (s *Selection) Plan(owner any, from netip.Addr, ports []uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slot := slices.Index(s.owners, owner)
	if slot < 0 && len(ports) == 0 || slot >= 0 && s.spread.Plans[slot].From == from && slices.Equal(s.spread.Plans[slot].Ports, ports) {
		return
	}
	taken := slices.IndexFunc(s.spread.Plans, func(p underlay.Plan) bool { return p.From == from })
	next := underlay.Plan{From: from, Ports: slices.Clone(ports)}
	switch {
	case len(ports) == 0 || taken >= 0 && taken != slot:
		if slot < 0 {
			return
		}
		s.remove(slot)
	case slot >= 0 && len(ports) > len(s.spread.Plans[slot].Ports): // move to the end, so that it does not displace plans behind it
		s.remove(slot)
		s.owners, s.spread.Plans = append(s.owners, owner), append(s.spread.Plans, next)
	case slot >= 0:
		s.spread.Plans[slot] = next
	case len(s.owners) < maxPlans:
		s.owners, s.spread.Plans = append(s.owners, owner), append(s.spread.Plans, next)
	default:
		return
	}
	s.apply()
}

// remove removes a plan. The caller holds mu.
func (s *Selection) remove(i int) {
	s.owners, s.spread.Plans = slices.Delete(s.owners, i, i+1), slices.Delete(s.spread.Plans, i, i+1)
}

// apply installs the selection, if there is a port for it. The caller holds mu.
func (s *Selection) apply() {
	if s.port == nil {
		return
	}
	var selection underlay.Selection // an empty range means spread is off: nothing to select
	s.reason = ErrSpreadOff
	if s.spread.First != 0 {
		selection, s.reason = s.spread, nil
	}
	plans, err := s.port.SetSelection(&selection)
	s.installed, s.active = plans, s.port.Features().Select
	if err == nil {
		s.ports = spread.Ports{First: selection.First, Last: selection.Last}
		return
	}
	s.reason = err
	if s.logged {
		return
	}
	s.logged = true
	if errors.Is(err, underlay.ErrSelectionFixed) {
		s.Log.Info("changing the reuseport program (classic BPF) is unsafe on this kernel, keeping the old one until the interface goes down and up", "error", err)
		return
	}
	s.Log.Warn("setting the reuseport program (classic BPF) failed, received flows may share lanes until the interface goes down and up", "error", err)
}

// ReceiveLanes returns the number of receive lanes, of which there are n, for a hello: 0 if the source port does not select the lane. Messages
// from port first + i of the range arrive at lane i modulo lanes.
func (s *Selection) ReceiveLanes(n int) (lanes, first uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	selects := s.active && s.ports == spread.Ports{First: s.spread.First, Last: s.spread.Last}
	if !selects && n > 1 {
		return 0, 0
	}
	return uint16(n), s.spread.First
}

// SelectionReport describes how receive lanes are selected.
type SelectionReport struct {
	ByPort bool   `json:"by_port"`          // by the source port's index in a plan, or in the range at the time the port was opened
	Plans  int    `json:"plans"`            // installed peers' plans
	Wanted int    `json:"wanted"`           // peers' plans to install, at most maxPlans
	Reason string `json:"reason,omitempty"` // for people: why not by port, or why fewer plans are installed than wanted
}

// Report describes the selection.
func (s *Selection) Report() SelectionReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := SelectionReport{ByPort: s.active, Plans: s.installed, Wanted: len(s.spread.Plans)}
	if s.reason != nil {
		r.Reason = s.reason.Error()
	}
	return r
}
