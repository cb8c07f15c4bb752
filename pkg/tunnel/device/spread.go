// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// Planner returns a port plan: the source ports, out of candidates, from which a peer at that address should send to our
// endpoint local. With these ports its flows spread evenly over the queues of our NIC, in lane order. It returns
// none if there is nothing to plan. mark is the firewall mark of our packets to the peer. A worker calls it once per session, without a lock, so it may query the operating system.
type Planner func(local netip.AddrPort, peer *underlay.Endpoint, mark uint32, candidates spread.Ports) []uint16

// spreadConfig is the spread configuration of a device.
type spreadConfig struct {
	mode  config.SpreadMode
	ports spread.Ports
	spray config.Spray
}

// resetSources discards the sources and uses those of the present port. The caller holds mu.
func (d *Device) resetSources() {
	var port underlay.Port
	if ref := d.port.Load(); ref != nil {
		port = ref.Port
	}
	d.sources.reset(port)
}

// closeSources stops spread on all lanes, and lane selection on the port, before the port is closed. The caller holds mu.
func (d *Device) closeSources() {
	d.sources.reset(nil)
	d.groups.reset(nil)
	d.selection.reset(nil, spread.Ports{})
	if d.handingOver {
		return // the lanes send nothing more
	}
	for _, p := range d.peers {
		p.mu.Lock()
		p.engine.Spread.Store(nil)
		p.updateProbedSources()
		p.resetSendGroup()
		p.path.sourcesOpened = 0
		p.mu.Unlock()
	}
}

// spreadPorts returns the range of source ports without the listen port: the larger of the two parts around it.
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

// The reasons why there is no spread to a peer, for people.
var (
	errSpreadOff     = errors.New("spreading is off")
	errDown          = errors.New("the interface is down")
	errNoSession     = errors.New("there is no session yet")
	errNoHello       = errors.New("the peer sent no hello: it does not run ropewalk, or its spread is off")
	errAwaitingHello = errors.New("waiting for the peer's hello")
	errNotGathering  = errors.New("the peer does not gather")
	errNotHeard      = errors.New("messages from other source ports have not reached the peer yet: a firewall may drop them")
	errNoPorts       = errors.New("none of the spread ports is free on this host")
)

// spreadSources returns the sources to use for the peer, or the reason for none. The caller holds mu.
func (p *Peer) spreadSources() (list []uint8, planned bool, why error) {
	x := &p.hello
	switch mode := p.dev.spreading.Load().mode; {
	case mode == config.SpreadOff:
		return nil, false, errSpreadOff
	case mode == config.SpreadOn:
	case x.remote == noHello:
		return nil, false, x.unknown
	case x.nat != nil:
		return nil, false, x.nat
	case !x.remote.Gathers:
		return nil, false, errNotGathering
	case !x.remote.Heard:
		return nil, false, errNotHeard
	}
	ports := p.dev.spreadPorts()
	if list = p.dev.sources.planned(x.remote.Plan, ports, &p.path.sourcesOpened); len(list) > 0 {
		return list, true, nil
	}
	list, why = p.dev.sources.unplanned(ports)
	if len(list) > 0 {
		why = nil
	}
	return list, false, why
}

// updateSpread updates the lanes, the status and the log after a change that may start or stop spread. The caller holds mu.
func (p *Peer) updateSpread() {
	list, planned, why := p.spreadSources()
	p.publishSpread(list, p.sprayTo(planned), why)
	p.updateProbedSources()
	state := config.PeerSpread{Active: why == nil, Ports: len(list), Planned: planned, Gathers: p.hello.remote.Gathers}
	if why != nil {
		state.Ports, state.Reason = 0, why.Error()
	} else {
		state.Sprays = p.engine.Spread.Load().Sprays()
		state.Blocked = p.blockedPorts()
	}
	p.path.spread = state
	p.logSpread(state, why)
	p.logUp(false)
}

// logSpread logs a change of spread to the peer if it lasts: changes before the peer has answered the hellos are not logged. The caller holds
// mu.
func (p *Peer) logSpread(state config.PeerSpread, why error) {
	blocked := errors.Is(why, errNotHeard)
	switch {
	case errors.Is(why, errAwaitingHello), blocked && p.hello.state != helloUnconfirmed: // not known in this session
		return
	case state.Active == p.path.spreadActive && (p.hello.nat == nil && !blocked || state.Reason == p.path.spreadLogged):
		return
	}
	p.path.spreadLogged, p.path.spreadActive = state.Reason, state.Active
	if p.path.up.due && !blocked || !p.running { // the line "tunnel to peer up" will have it, or the peer was stopped
		return
	}
	level := slog.LevelInfo
	if !p.path.spreadLog.Allow(p.dev.clock(), time.Minute) { // the peer can cause these changes
		level = slog.LevelDebug
	}
	switch {
	case blocked && level == slog.LevelInfo:
		p.log().Warn("messages from spread source ports do not reach the peer, sending all flows from the listen port until they do", "peer", p.key, "reason", state.Reason)
	case state.Active:
		p.log().Log(context.Background(), level, "spread started", "peer", p.key, "source_ports", state.Ports, "planned", state.Planned)
	default:
		p.log().Log(context.Background(), level, "spread stopped", "peer", p.key, "reason", state.Reason)
	}
}

// sprayTo returns how flows to the peer may be sprayed: both sides have to want it. Each port of a port plan has a lane of its own at the
// peer, so no flow can be sprayed over them. The caller holds mu.
func (p *Peer) sprayTo(planned bool) engine.Spray {
	x, n := &p.hello, p.dev.spreading.Load().spray.Ports()
	if n == 0 || planned || x.remote.Lanes == 0 {
		return engine.Spray{}
	}
	return engine.Spray{Ports: n, Lanes: int(x.remote.Lanes), FirstPort: x.remote.FirstLanePort, LastPort: x.remote.Last}
}

// publishSpread passes the sources to the lanes. While spread may still start, lanes record flows, so that none is reordered then.
func (p *Peer) publishSpread(list []uint8, spray engine.Spray, why error) {
	old, next := p.engine.Spread.Load(), (*engine.Spread)(nil)
	switch {
	case why == nil || errors.Is(why, errNoSession) || errors.Is(why, errAwaitingHello) || errors.Is(why, errNotHeard):
		if next = old; old == nil || !slices.Equal(old.Sources(), list) {
			next = engine.NewSpread(list)
		}
		if ref := p.dev.port.Load(); ref != nil && next.Spray() != spray {
			next = next.Sprayed(spray, ref.Source)
		}
	}
	if next != old {
		p.engine.Spread.Store(next)
	}
}
