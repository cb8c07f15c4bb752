// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/engine"
	"github.com/ropewalk/ropewalk/pkg/spread"
	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// Planner returns the source ports, out of candidates, by which a peer at that address should send to our canonical
// endpoint so that its flows fall evenly on the queues of our NIC, in lane order; none if there is nothing to plan. What
// we send to the peer bears mark. It is called a few times per handshake, away from the lanes, and may ask the operating
// system.
type Planner func(own netip.AddrPort, peer netip.Addr, mark uint32, candidates spread.Ports) []uint16

// spreading is how a device spreads.
type spreading struct {
	mode  config.SpreadMode
	ports spread.Ports
}

// sources are those of the port that is open now.
type sources struct {
	mu   sync.Mutex
	port underlay.Port
	own  []int // without a plan, for all peers; nil until first needed
}

// reset forgets all sources: port is another one, or the range is.
func (s *sources) reset(port underlay.Port) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.port, s.own = port, nil
}

// unplanned returns as many sources of a range as one peer may have. Ports that others hold are left out.
func (s *sources) unplanned(ports spread.Ports) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own == nil && s.port != nil {
		s.own = []int{}
		for port := int(ports.First); port <= int(ports.Last) && len(s.own) < spread.MaxPorts; port++ {
			s.open(uint16(port), &s.own)
		}
	}
	return s.own
}

// planned returns the sources of a plan, as far as they are to be had.
func (s *sources) planned(plan []uint16, ports spread.Ports) (list []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.port == nil {
		return nil
	}
	for _, port := range plan {
		if ports.Contains(port) && len(list) < spread.MaxPorts {
			s.open(port, &list)
		}
	}
	return list
}

func (s *sources) open(port uint16, list *[]int) {
	// A port that cannot be had is somebody else's, and the others do.
	if source, err := s.port.OpenSource(port); err == nil && !slices.Contains(*list, source) {
		*list = append(*list, source)
	}
}

// checkSpread refuses source ports that cannot be used with the listen port.
func (d *Device) checkSpread(c *config.Device) error {
	if c.SpreadPorts == nil {
		return nil
	}
	listen := d.listenPort
	if c.ListenPort != nil {
		listen = *c.ListenPort
	}
	if err := config.CheckPorts(*c.SpreadPorts, listen); err != nil {
		return fmt.Errorf("setting the spread ports: %w", err)
	}
	return nil
}

// configureSpread changes how the device spreads. The caller holds mu.
func (d *Device) configureSpread(mode *config.SpreadMode, ports *spread.Ports) {
	old := *d.spreading.Load()
	s := old
	if mode != nil {
		s.mode = *mode
	}
	if ports != nil {
		s.ports = *ports
	}
	if s == old {
		return
	}
	d.spreading.Store(&s)
	d.respread()
}

// respread begins anew with every peer: the port, the range or the mode is another one. The caller holds mu.
func (d *Device) respread() {
	var port underlay.Port
	if ref := d.port.Load(); ref != nil {
		port = ref.Port
	}
	d.sources.reset(port)
	for _, p := range d.peers {
		p.mu.Lock()
		p.respread()
		p.mu.Unlock()
	}
}

// spreadPorts is the range without the listen port: of the two parts that it makes, the larger.
func (d *Device) spreadPorts() spread.Ports {
	ports := d.spreading.Load().ports
	ref := d.port.Load()
	if ref == nil || !ports.Contains(ref.LocalPort()) {
		return ports
	}
	listen := ref.LocalPort()
	below, above := spread.Ports{First: ports.First, Last: listen - 1}, spread.Ports{First: listen + 1, Last: ports.Last}
	if below.Len() > above.Len() {
		return below
	}
	return above
}

// The reasons why there is no spreading, for people.
var (
	errSpreadOff     = errors.New("spreading is off")
	errNoSession     = errors.New("there is no session yet")
	errNoHello       = errors.New("the peer has sent no hello: it is no ropewalk, or does not spread")
	errAwaitingHello = errors.New("waiting for the peer's hello")
	errNotGathering  = errors.New("the peer does not gather")
	errNotHeard      = errors.New("messages from other source ports have not reached the peer yet: a firewall may keep them")
	errNoPorts       = errors.New("none of the spread ports can be had on this host")
)

// spreadTo returns how to spread to the peer now, or why not. The caller holds mu.
func (p *Peer) spreadTo() (list []int, planned bool, why error) {
	s := p.dev.spreading.Load()
	switch {
	case s.mode == config.SpreadOff:
		return nil, false, errSpreadOff
	case s.mode == config.SpreadOn:
	case p.hello.why != nil:
		return nil, false, p.hello.why
	case !p.hello.theirs.Gathers:
		return nil, false, errNotGathering
	case !p.hello.theirs.Heard:
		return nil, false, errNotHeard
	}
	ports := p.dev.spreadPorts()
	if plan := p.hello.theirs.Plan; len(plan) > 0 {
		if list = p.dev.sources.planned(plan, ports); len(list) > 0 {
			return list, true, nil
		}
	}
	if list = p.dev.sources.unplanned(ports); len(list) == 0 {
		return nil, false, errNoPorts
	}
	return list, false, nil
}

// apply makes the lanes spread to the peer as is right now, and says so when that is something new. The caller holds mu.
func (p *Peer) apply() {
	list, planned, why := p.spreadTo()
	old := p.lane.Spread.Load()
	switch {
	case why != nil && !p.mayGather(why):
		p.lane.Spread.Store(nil)
	case old == nil || !slices.Equal(old.Sources(), list):
		p.lane.Spread.Store(engine.NewSpread(list))
	}
	state := config.PeerSpread{
		Active: why == nil, Ports: len(list), Planned: planned, Gathers: p.hello.theirs.Gathers,
	}
	if why != nil {
		state.Reason = why.Error()
	}
	if state == p.hello.state {
		return
	}
	news := state.Active != p.hello.state.Active || p.hello.nat(why)
	p.hello.state = state
	switch {
	case news && state.Active:
		p.dev.log.Info("spread on", "peer", p.key, "ports", state.Ports, "planned", planned)
	case news:
		p.dev.log.Info("spread off", "peer", p.key, "reason", state.Reason)
	}
}

// mayGather tells whether flows that leave from the canonical port are to be noted, because they may be spread soon.
func (p *Peer) mayGather(why error) bool {
	return errors.Is(why, errNoSession) || errors.Is(why, errAwaitingHello) || errors.Is(why, errNotHeard)
}

// errNAT is why there is no spreading through a NAT: it has a mapping for the canonical ports only, and others would be
// dropped or come out as somebody else's.
type errNAT struct{ behind, says, seen string }

// Error names both views.
func (e *errNAT) Error() string {
	return fmt.Sprintf("%s is behind a NAT: it is %s to itself, and %s to the other side", e.behind, e.says, e.seen)
}
