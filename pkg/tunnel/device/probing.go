// SPDX-License-Identifier: Apache-2.0

package device

import (
	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/protocol/probe"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

// probing tests the paths to one peer with probes, if the peer answers them. Peer.mu guards it.
type probing struct {
	*probe.Prober                // nil before the first
	spread        *engine.Spread // whose sources are the paths from 1 on, nil for none
	sent          probe.Sent
}

// countSent returns the numbers of messages sent to the peer. The caller holds mu.
func (p *Peer) countSent() *probe.Sent {
	s := &p.probing.sent
	s.On, s.Data = append(s.On[:0], 0), p.engine.Data()
	if spread := p.probing.spread; spread != nil {
		s.On = spread.AppendSent(s.On)
	}
	s.All = uint32(p.engine.Packets().Tx)
	s.On[0] = s.All
	for _, n := range s.On[1:] {
		s.On[0] -= n
	}
	return s
}

// active reports whether the peer answers probes.
func (b *probing) active() bool { return b.Prober != nil && b.State() != probe.Off }

// mayProbe reports whether to send probes to the peer: none while it roams with each message. The caller holds mu.
func (p *Peer) mayProbe(now int64) bool {
	return p.probing.active() && !p.path.roams.due.Load() && p.engine.Current.Load().Usable(now)
}

// get returns the prober. It makes the first.
func (b *probing) get() *probe.Prober {
	if b.Prober == nil {
		b.Prober = new(probe.Prober)
	}
	return b.Prober
}

// stop ends the probes. The next ones begin with the path MTU that was found.
func (b *probing) stop() {
	if b.Prober != nil {
		b.Stop()
	}
}

// leavePath is stop after a change of the endpoint: the next probes have a new burst.
func (b *probing) leavePath() {
	if b.stop(); b.Prober != nil {
		b.Refill()
	}
}

// sources returns the sources from which the prober tests the path, besides the listen port.
func (b *probing) sources() []uint8 {
	if b.spread == nil {
		return nil
	}
	return b.spread.Sources()
}

// probedPorts returns the ports of probing.sources. The caller holds mu.
func (p *Peer) probedPorts() (ports []uint16) {
	if ref := p.dev.port.Load(); ref != nil {
		for _, source := range p.probing.sources() {
			ports = append(ports, ref.Source(int(source)))
		}
	}
	return ports
}

// updateProbedSources has the prober test the sources that lanes use. It knows nothing of new ones. Through a NAT nothing is concluded: the peer
// counts by other ports. The caller holds mu.
func (p *Peer) updateProbedSources() {
	b, s := &p.probing, p.engine.Spread.Load()
	if s != nil && (len(s.Sources()) == 0 || p.hello.nat != nil) {
		s = nil
	}
	if s == b.spread {
		return
	}
	old := b.spread
	if b.spread = s; s == nil || !s.SharesCounts(old) {
		b.get().SetSources(len(b.sources()))
	}
}

// nextProbe returns when to call runProbes, 0 for never. It has lanes call ProbeDue before, if need be. The caller holds mu.
func (p *Peer) nextProbe(now int64) int64 {
	b := &p.probing
	if !p.mayProbe(now) {
		return 0
	}
	tx := p.countSent()
	if b.spread != nil && b.spread.WakeAfter(tx.On[1:], b.Wake(now, tx)) {
		return now
	}
	return b.Next(now, tx)
}

// blockedPorts returns the source ports that the path to the peer does not admit. The caller holds mu.
func (p *Peer) blockedPorts() (blocked []uint16) {
	for i, port := range p.probedPorts() {
		if p.probing.Blocked(i) {
			blocked = append(blocked, port)
		}
	}
	return blocked
}

// sendControl sends a hello or a probe from a source.
func (p *Peer) sendControl(keys *session.Keypair, source int, plain []byte) {
	p.dev.engine.SendControl(p.engine, keys, engine.ControlMessage{Source: source, Plain: plain})
}
