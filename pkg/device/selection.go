// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/spread"
	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// maxPlans is how many peers' plans choose lanes, so that a change takes little time however many peers there are. What
// comes from further ones goes to lanes by the range of source ports: with that many, chance is even enough.
const maxPlans = 128

var errNoSelector = errors.New("the underlay chooses lanes itself")

// selectingPort is a port whose lanes can be chosen.
type selectingPort interface {
	underlay.Port
	underlay.Selector
}

// laneSelection chooses the lanes of what arrives, on the port that is open now: from peers with a plan by a port's place in
// it, from others that spread by its place in the range. A peer's plan is in force before the peer is told of it, and that
// of the next session is nearly always the same. If it is another one, our NIC's queues have changed; what is then on its
// way from that peer may be reordered, once, as it may be between the queues, and is not held back.
type laneSelection struct {
	log *slog.Logger

	mu        sync.Mutex
	port      selectingPort // nil while there is none
	spread    underlay.Selection
	owners    []*Peer // of spread.Plans
	installed int     // plans in force
	active    bool    // something is in force
	reason    error   // reason nothing is, or what should be is not
	logged    bool    // it was logged
}

// reset takes another port, nil for none, and another range of source ports, an empty one to leave all to the port.
func (s *laneSelection) reset(port underlay.Port, ports spread.Ports) {
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
		s.reason = errDown
	case !ok:
		s.reason = errNoSelector
	default:
		s.apply()
	}
}

// plan makes the plan of what comes from an address that of its owner, in place of the one it had; no ports are no plan. Of
// two owners with one address the first has its plan, so that none can move the other's flows.
func (s *laneSelection) plan(owner *Peer, from netip.Addr, ports []uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := slices.Index(s.owners, owner)
	if own < 0 && len(ports) == 0 || own >= 0 && s.spread.Plans[own].From == from && slices.Equal(s.spread.Plans[own].Ports, ports) {
		return
	}
	taken := slices.IndexFunc(s.spread.Plans, func(p underlay.Plan) bool { return p.From == from })
	next := underlay.Plan{From: from, Ports: slices.Clone(ports)}
	switch {
	case len(ports) == 0 || taken >= 0 && taken != own:
		if own < 0 {
			return
		}
		s.remove(own)
	case own >= 0 && len(ports) > len(s.spread.Plans[own].Ports): // it does not take the room of those behind it
		s.remove(own)
		s.owners, s.spread.Plans = append(s.owners, owner), append(s.spread.Plans, next)
	case own >= 0:
		s.spread.Plans[own] = next
	case len(s.owners) < maxPlans:
		s.owners, s.spread.Plans = append(s.owners, owner), append(s.spread.Plans, next)
	default:
		return
	}
	s.apply()
}

// remove takes out a plan. The caller holds mu.
func (s *laneSelection) remove(i int) {
	s.owners, s.spread.Plans = slices.Delete(s.owners, i, i+1), slices.Delete(s.spread.Plans, i, i+1)
}

// apply puts the selection into force, if there is a port for it. The caller holds mu.
func (s *laneSelection) apply() {
	if s.port == nil {
		return
	}
	var now underlay.Selection // without a range there is no spreading, and nothing to choose
	s.reason = errSpreadOff
	if s.spread.First != 0 {
		now, s.reason = s.spread, nil
	}
	plans, err := s.port.SetSelection(&now)
	s.installed, s.active = plans, s.port.Features().Select
	if err == nil {
		return
	}
	s.reason = err
	if s.logged {
		return
	}
	s.logged = true
	if errors.Is(err, underlay.ErrSelectionStands) {
		s.log.Info("plans do not choose lanes here, the range of source ports does", "error", err)
		return
	}
	s.log.Warn("a hash chooses the lanes of what arrives, which may leave some idle", "error", err)
}

// SelectionReport says how the lanes of what arrives are chosen.
type SelectionReport struct {
	ByPort bool   `json:"by_port"`          // by the source port's place in a plan, or in the range of when the port was opened
	Plans  int    `json:"plans"`            // peers' plans in force
	Wanted int    `json:"wanted"`           // peers' plans that should be, at most maxPlans
	Reason string `json:"reason,omitempty"` // reason not by port, or why not by these plans, for people
}

func (s *laneSelection) report() SelectionReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := SelectionReport{ByPort: s.active, Plans: s.installed, Wanted: len(s.spread.Plans)}
	if s.reason != nil {
		r.Reason = s.reason.Error()
	}
	return r
}

// resetSelection makes the selection that of the present port and way to spread. The caller holds Device.mu.
func (d *Device) resetSelection() {
	spreading := d.spreading.Load()
	ports := spreading.ports
	if spreading.mode == config.SpreadOff {
		ports = spread.Ports{}
	}
	var port underlay.Port
	if ref := d.port.Load(); ref != nil {
		port = ref.Port
	}
	d.selection.reset(port, ports)
}
