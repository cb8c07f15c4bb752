// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/engine"
	"github.com/ropewalk/ropewalk/pkg/spread"
	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// Planner returns the source ports, out of candidates, by which a peer at that address should send to our canonical
// endpoint so that its flows fall evenly on the queues of our NIC, in lane order; none if there is nothing to plan. What
// we send to the peer bears mark. It is called once in a session, by a worker that holds no lock, and may ask the operating
// system.
type Planner func(own netip.AddrPort, peer netip.Addr, mark uint32, candidates spread.Ports) []uint16

// spreadConfig is how a device spreads.
type spreadConfig struct {
	mode  config.SpreadMode
	ports spread.Ports
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
	d.resetSources()
	d.resetSelection()
	d.renewHellos(false)
}

// resetSources makes the sources those of the present port. The caller holds mu.
func (d *Device) resetSources() {
	var port underlay.Port
	if ref := d.port.Load(); ref != nil {
		port = ref.Port
	}
	d.sources.reset(port)
}

// closeSources takes the sources away from all lanes, and the selection from the port, before that is closed. The caller
// holds mu.
func (d *Device) closeSources() {
	d.sources.reset(nil)
	d.selection.reset(nil, spread.Ports{})
	for _, p := range d.peers {
		p.mu.Lock()
		p.engine.Spread.Store(nil)
		p.opened = 0
		p.mu.Unlock()
	}
}

// renewHellos begins anew with every peer; moved says that our endpoint is another one. The caller holds mu.
func (d *Device) renewHellos(moved bool) {
	for _, p := range d.peers {
		p.mu.Lock()
		p.askAnew(moved)
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
	errDown          = errors.New("the interface is down")
	errNoSession     = errors.New("there is no session yet")
	errNoHello       = errors.New("the peer has sent no hello: it is no ropewalk, or does not spread")
	errAwaitingHello = errors.New("waiting for the peer's hello")
	errNotGathering  = errors.New("the peer does not gather")
	errNotHeard      = errors.New("messages from other source ports have not reached the peer yet: a firewall may keep them")
	errNoPorts       = errors.New("none of the spread ports is free on this host")
)

// spreadTo returns how to spread to the peer now, or why not. The caller holds mu.
func (p *Peer) spreadTo() (list []uint8, planned bool, why error) {
	s := &p.hello
	switch mode := p.dev.spreading.Load().mode; {
	case mode == config.SpreadOff:
		return nil, false, errSpreadOff
	case mode == config.SpreadOn:
	case !s.known:
		return nil, false, s.none
	case s.nat != nil:
		return nil, false, s.nat
	case !s.theirs.Gathers:
		return nil, false, errNotGathering
	case !s.theirs.Heard:
		return nil, false, errNotHeard
	}
	ports := p.dev.spreadPorts()
	if list = p.dev.sources.planned(s.theirs.Plan, ports, &p.opened); len(list) > 0 {
		return list, true, nil
	}
	list, why = p.dev.sources.unplanned(ports)
	if len(list) > 0 {
		why = nil
	}
	return list, false, why
}

// apply makes the lanes spread to the peer as is right now, and keeps and logs what that is. The caller holds mu.
func (p *Peer) apply() {
	list, planned, why := p.spreadTo()
	p.publishSpread(list, why)
	state := config.PeerSpread{Active: why == nil, Ports: len(list), Planned: planned, Gathers: p.hello.theirs.Gathers}
	if why != nil {
		state.Ports, state.Reason = 0, why.Error()
	}
	old := p.hello.state
	p.hello.state = state
	if state.Active == old.Active && (p.hello.nat == nil || state.Reason == old.Reason) {
		return
	}
	level := slog.LevelInfo
	if !p.spreadLog.allow(p.dev.clock(), time.Minute) { // the peer may have a say in it
		level = slog.LevelDebug
	}
	if state.Active {
		p.dev.log.Log(context.Background(), level, "spread on", "peer", p.key, "ports", state.Ports, "planned", planned)
	} else {
		p.dev.log.Log(context.Background(), level, "spread off", "peer", p.key, "reason", state.Reason)
	}
}

// publishSpread tells the lanes. Where spreading may yet begin, they note flows.
func (p *Peer) publishSpread(list []uint8, why error) {
	old := p.engine.Spread.Load()
	switch {
	case why == nil || errors.Is(why, errNoSession) || errors.Is(why, errAwaitingHello) || errors.Is(why, errNotHeard):
		if old == nil || !slices.Equal(old.Sources(), list) {
			p.engine.Spread.Store(engine.NewSpread(list))
		}
	case old != nil:
		p.engine.Spread.Store(nil)
	}
}
