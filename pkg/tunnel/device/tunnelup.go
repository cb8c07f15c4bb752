// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// upLog is the state of the log line that says that the tunnel to a peer is up. Peer.mu guards it.
type upLog struct {
	due bool // the line waits until it is known how flows are spread
}

// logUp logs that the tunnel to the peer is up, once after it was not: the peer, its spread, the underlay and the MTU. Unless final is set,
// it waits for the end of the hello exchange. The caller holds mu.
func (p *Peer) logUp(final bool) {
	if !p.running || !p.path.up.due || !final && !p.helloEnded() {
		return
	}
	p.path.up.due = false
	log := p.log().With("peer", p.key, "endpoint", p.engine.Endpoint.Load().Dst, "spread", spreadText(p.path.spread))
	p.dev.workers.Go(func() { // without mu: a port that changes its mode waits for lanes, which may wait for mu
		log.Info("tunnel to peer up", "underlay", p.dev.underlayReport().Path, "mtu", p.dev.mtu.Load())
	})
}

// helloEnded reports whether the hello exchange of this session has a result, or there is none. The caller holds mu.
func (p *Peer) helloEnded() bool {
	x := &p.hello
	switch x.state {
	case helloSettled, helloUnconfirmed:
		return true
	case helloIdle:
		return errors.Is(x.unknown, errNoHello) || p.dev.spreading.Load().mode != config.SpreadAuto
	}
	return false
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

// noteSession reports that a session began or that its endpoint changed.
func (p *Peer) noteSession() {
	if changed := p.dev.cfg.OnSession; changed != nil {
		changed()
	}
}
