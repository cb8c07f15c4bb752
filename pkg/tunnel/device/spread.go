// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/hello"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pace"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/sockets"
)

// Planner returns a port plan: the source ports, out of candidates, from which a peer at that address should send to our
// endpoint local. With these ports its flows spread evenly over the queues of our NIC, in lane order. It returns
// none if there is nothing to plan. mark is the firewall mark of our packets to the peer. A worker calls it once per session, without a lock, so it may query the operating system.
type Planner func(local netip.AddrPort, peer *underlay.Endpoint, mark uint32, candidates spread.Ports) []uint16

// peerSpread is the spread of flows to a peer. Peer.mu guards all but grouped.
type peerSpread struct {
	peer          *Peer
	grouped       atomic.Bool       // taskSendGroup was posted since the port was opened
	sourcesOpened int               // sources that were opened for the peer's port plans
	report        config.PeerSpread // the spread that lanes use now
	log           pace.Rate
	logged        string // the reason in the last log message
	active        bool   // in the last log message
	upDue         bool   // the line that says that the tunnel is up waits until it is known how flows are spread
}

// spreadConfig is the spread configuration of a device.
type spreadConfig struct {
	mode  config.SpreadMode
	ports spread.Ports
	spray config.Spray
}

// The reasons why there is no spread to a peer, for people.
var (
	errNotGathering = errors.New("the peer does not gather")
	errNotHeard     = errors.New("messages from other source ports have not reached the peer yet: a firewall may drop them")
)

// sources returns the sources to use for the peer, or the reason for none. The caller holds mu.
func (s *peerSpread) sources() (list []uint8, planned bool, why error) {
	p := s.peer
	x := &p.hello.exchange
	switch mode := p.dev.spreading.Load().mode; {
	case mode == config.SpreadOff:
		return nil, false, sockets.ErrSpreadOff
	case mode == config.SpreadOn:
	case x.Remote == hello.None:
		return nil, false, x.Unknown
	case x.NAT != nil:
		return nil, false, x.NAT
	case !x.Remote.Gathers:
		return nil, false, errNotGathering
	case !x.Remote.Heard:
		return nil, false, errNotHeard
	}
	ports := p.dev.outer.spreadPorts()
	if list = p.dev.outer.sources.Planned(x.Remote.Plan, ports, &s.sourcesOpened); len(list) > 0 {
		return list, true, nil
	}
	list, why = p.dev.outer.sources.Unplanned(ports)
	if len(list) > 0 {
		why = nil
	}
	return list, false, why
}

// update updates the lanes, the status and the log after a change that may start or stop spread. The caller holds mu.
func (s *peerSpread) update() {
	p := s.peer
	list, planned, why := s.sources()
	s.publish(list, s.sprayTo(planned), why)
	p.probing.updateSources()
	state := config.PeerSpread{Active: why == nil, Ports: len(list), Planned: planned, Gathers: p.hello.exchange.Remote.Gathers}
	if why != nil {
		state.Ports, state.Reason = 0, why.Error()
	} else {
		state.Sprays = p.engine.Spread.Load().Sprays()
		state.Blocked = p.probing.blockedPorts()
	}
	s.report = state
	s.logChange(state, why)
	s.logUp(false)
}

// logChange logs a change of spread to the peer if it lasts: changes before the peer has answered the hellos are not logged. The caller holds
// mu.
func (s *peerSpread) logChange(state config.PeerSpread, why error) {
	p := s.peer
	blocked := errors.Is(why, errNotHeard)
	switch {
	case errors.Is(why, hello.ErrAwaiting), blocked && p.hello.exchange.State() != hello.Unconfirmed: // not known in this session
		return
	case state.Active == s.active && (p.hello.exchange.NAT == nil && !blocked || state.Reason == s.logged):
		return
	}
	s.logged, s.active = state.Reason, state.Active
	if s.upDue && !blocked || !p.running { // the line "tunnel to peer up" will have it, or the peer was stopped
		return
	}
	level := s.log.Level(p.dev.clock(), slog.LevelInfo) // the peer can cause these changes
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
func (s *peerSpread) sprayTo(planned bool) engine.Spray {
	p := s.peer
	x, n := &p.hello.exchange, p.dev.spreading.Load().spray.Ports()
	if n == 0 || planned || x.Remote.Lanes == 0 {
		return engine.Spray{}
	}
	return engine.Spray{Ports: n, Lanes: int(x.Remote.Lanes), FirstPort: x.Remote.FirstLanePort, LastPort: x.Remote.Last}
}

// publish passes the sources to the lanes. While spread may still start, lanes record flows, so that none is reordered then.
func (s *peerSpread) publish(list []uint8, spray engine.Spray, why error) {
	p := s.peer
	old, next := p.engine.Spread.Load(), (*engine.Spread)(nil)
	switch {
	case why == nil || errors.Is(why, hello.ErrNoSession) || errors.Is(why, hello.ErrAwaiting) || errors.Is(why, errNotHeard):
		if next = old; old == nil || !slices.Equal(old.Sources(), list) {
			next = engine.NewSpread(list)
		}
		if ref := p.dev.outer.port.Load(); ref != nil && next.Spray() != spray {
			next = next.Sprayed(spray, ref.Source)
		}
	}
	if next != old {
		p.engine.Spread.Store(next)
	}
}

// chooseGroup gives the peer its send group. Messages that were sent in group 0 are in the queue of a network device by then. Unless
// that has a queue for each socket (the fq qdisc), no flow is reordered.
func (s *peerSpread) chooseGroup() {
	p := s.peer
	if !s.grouped.Load() { // it was for the former port
		return
	}
	group, ok := p.dev.outer.groups.Next()
	if !ok {
		s.grouped.Store(false)
		return
	}
	p.engine.SendGroup.Store(int32(group))
}

// resetGroup returns the peer to group 0, which is the only one of a new port.
func (s *peerSpread) resetGroup() {
	s.peer.engine.SendGroup.Store(0)
	s.grouped.Store(false)
}

// logUp logs that the tunnel to the peer is up, once after it was not: the peer, its spread, the underlay and the MTU. Unless final is set,
// it waits for the end of the hello exchange. The caller holds mu.
func (s *peerSpread) logUp(final bool) {
	p := s.peer
	if !p.running || !s.upDue || !final && !s.helloEnded() {
		return
	}
	s.upDue = false
	log := p.log().With("peer", p.key, "endpoint", p.engine.Endpoint.Load().Dst, "spread", spreadText(s.report))
	p.dev.workers.Go(func() { // without mu: a port that changes its mode waits for lanes, which may wait for mu
		log.Info("tunnel to peer up", "underlay", p.dev.outer.report().Path, "mtu", p.dev.mtu.Load())
	})
}

// helloEnded reports whether the hello exchange of this session has a result, or there is none. The caller holds mu.
func (s *peerSpread) helloEnded() bool {
	p := s.peer
	return p.hello.exchange.Ended(p.dev.spreading.Load().mode == config.SpreadAuto)
}

// spreadText describes how flows to a peer are spread.
func spreadText(s config.PeerSpread) string {
	switch {
	case !s.Active:
		return "off: " + s.Reason
	case s.Planned:
		return fmt.Sprintf("%d ports, planned by the peer", s.Ports)
	}
	return fmt.Sprintf("%d ports", s.Ports)
}
