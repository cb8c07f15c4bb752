// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/probe"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pace"
)

// probeQueue takes a peer's probes, and answers to ours, from lanes. It keeps the last of each kind only.
type probeQueue [wire.ProbePort]struct {
	waiting atomic.Pointer[wire.Probe] // nil when none waits for a worker
	rate    pace.Rate
}

// receiveProbe takes a probe or an answer from a lane.
func (p *Peer) receiveProbe(plain []byte) drop.Reason {
	m := new(wire.Probe)
	if p.dev.spreading.Load().mode == config.SpreadOff {
		return drop.HelloUnwanted
	}
	switch err := wire.ParseProbe(plain, m); {
	case errors.Is(err, wire.ErrProbeVersion):
		return drop.HelloVersion
	case err != nil:
		return drop.HelloInvalid
	case m.Kind == wire.ProbePort: // the lane has counted it
		return drop.None
	}
	q := &p.requests.probes[m.Kind]
	if !q.rate.Allow(p.dev.clock(), time.Second) {
		return drop.HelloUnwanted
	}
	q.waiting.Store(m)
	p.post(taskProbe)
	return drop.None
}

// ProbeDue implements engine.SlowPath.
func (p *Peer) ProbeDue() { p.post(taskProbe) }

// handleProbes answers the peer's probes, and takes its answers to ours. The caller holds mu.
func (p *Peer) handleProbes(now int64) {
	take := func(k wire.ProbeKind) *wire.Probe { return p.requests.probes[k].waiting.Swap(nil) }
	keys := p.engine.Current.Load()
	for _, m := range []*wire.Probe{take(wire.ProbeSize), take(wire.ProbeRequest)} {
		if m != nil && keys.Usable(now) {
			p.answerProbe(keys, m)
		}
	}
	if m := take(wire.ProbeAnswer); m != nil && !p.echoed(m, now) {
		p.takeAnswer(m, now)
	}
	if m := take(wire.ProbeReport); m != nil {
		p.takeReport(m, now)
	}
}

func (p *Peer) answerProbe(keys *session.Keypair, m *wire.Probe) {
	answer := wire.Probe{Kind: wire.ProbeAnswer, ID: m.ID, Size: m.Size}
	if m.Kind == wire.ProbeRequest {
		answer.Kind, answer.Counted = wire.ProbeReport, p.engine.Gathered.Load() != nil
		answer.Ports = p.engine.PortCounts(nil)
		answer.Received = uint32(p.engine.Packets().Rx) // later: no fewer than those of the ports
	}
	p.sendControl(keys, 0, wire.AppendProbe(nil, &answer))
}

// takeAnswer takes the answer to a probe of the path MTU, or of trains. The caller holds mu.
func (p *Peer) takeAnswer(m *wire.Probe, now int64) {
	if !p.probing.active() {
		return
	}
	if concluded, ok := p.probing.TrainsAnswered(now, m.ID); ok {
		if concluded {
			p.applyTrains()
		}
		return
	}
	size := m.Size + p.mtu.overhead
	if path, ok := p.probing.Answered(now, m.ID, size); ok {
		p.mtu.known.refute(size, path)
		p.applyPathMTU()
	}
}

// takeReport takes a report of the messages that the peer has received. The caller holds mu.
func (p *Peer) takeReport(m *wire.Probe, now int64) {
	if !p.probing.active() {
		return
	}
	ports := p.probedPorts()
	r := probe.Report{ID: m.ID, Counted: m.Counted, On: make([]uint32, 1+len(ports))}
	r.On[0] = m.Received
	for _, c := range m.Ports {
		r.On[0] -= c.Messages
		if i := slices.Index(ports, c.Port); i >= 0 {
			r.On[1+i] = c.Messages
		}
	}
	if p.probing.Reported(now, &r, p.countSent()) {
		p.blockSources()
	}
}

// runProbes sends the probes that are due. The caller holds mu.
func (p *Peer) runProbes(now int64) {
	p.updatePathMTU(now)
	if !p.mayProbe(now) {
		return
	}
	probes := p.probing.Fire(now, p.countSent())
	p.applyPathMTU()
	if len(probes) == 0 {
		return
	}
	var messages []engine.ControlMessage
	for _, m := range probes {
		c, plain := engine.ControlMessage{}, wire.Probe{Kind: m.Kind, ID: m.ID, Size: wire.MinProbeSize}
		if m.Path > 0 {
			c.Source = int(p.probing.sources()[m.Path-1])
		}
		if m.Kind == wire.ProbeSize {
			c.Size = m.Size - p.mtu.overhead
			plain.Size = c.Size
		}
		if m.Train {
			c.Lead = wire.AppendProbe(nil, &wire.Probe{Kind: wire.ProbePort, Size: wire.MinProbeSize})
		}
		c.Plain = wire.AppendProbe(nil, &plain)
		messages = append(messages, c)
	}
	p.dev.engine.SendControl(p.engine, p.engine.Current.Load(), messages...)
}

// blockSources has the flows of blocked sources leave from the listen port, and reports the change. The caller holds mu.
func (p *Peer) blockSources() {
	b, s := &p.probing, p.engine.Spread.Load()
	if s == nil || !s.SharesCounts(b.spread) {
		return
	}
	b.spread = s.Blocked(b.Blocked)
	p.engine.Spread.Store(b.spread)
	p.updateSpread()
	level := slog.LevelInfo
	if !p.path.spreadLog.Allow(p.dev.clock(), time.Minute) {
		level = slog.LevelDebug
	}
	if blocked := p.path.spread.Blocked; len(blocked) > 0 {
		p.log().Log(context.Background(), level, "the path drops messages from some spread source ports, sending their flows from the listen port until probes arrive",
			"peer", p.key, "blocked_ports", len(blocked), "source_ports", len(b.sources()), "first_blocked_port", blocked[0])
		return
	}
	p.log().Log(context.Background(), level, "the path admits all spread source ports again, spreading over all of them", "peer", p.key)
}

// resumeBlocked blocks the source ports that the path did not admit before an upgrade in place, until probes arrive. The caller holds mu.
func (p *Peer) resumeBlocked(blocked []uint16) {
	known := false
	for i, port := range p.probedPorts() {
		if slices.Contains(blocked, port) {
			p.probing.Block(p.dev.clock(), i)
			known = true
		}
	}
	if known {
		p.blockSources()
	}
}
