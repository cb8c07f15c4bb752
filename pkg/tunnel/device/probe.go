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
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
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

// accept takes a probe or an answer from a lane.
func (b *probing) accept(plain []byte) drop.Reason {
	p := b.peer
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
	q := &b.queue[m.Kind]
	if !q.rate.Allow(p.dev.clock(), time.Second) {
		return drop.HelloUnwanted
	}
	q.waiting.Store(m)
	p.post(taskProbe)
	return drop.None
}

// handle answers the peer's probes, and takes its answers to ours. The caller holds mu.
func (b *probing) handle(now int64) {
	take := func(k wire.ProbeKind) *wire.Probe { return b.queue[k].waiting.Swap(nil) }
	keys := b.peer.engine.Current.Load()
	for _, m := range []*wire.Probe{take(wire.ProbeSize), take(wire.ProbeRequest)} {
		if m != nil && keys.Usable(now) {
			b.answer(keys, m)
		}
	}
	if m := take(wire.ProbeAnswer); m != nil && !b.echoed(m, now) {
		b.takeAnswer(m, now)
	}
	if m := take(wire.ProbeReport); m != nil {
		b.takeReport(m, now)
	}
}

func (b *probing) answer(keys *session.Keypair, m *wire.Probe) {
	p := b.peer
	answer := wire.Probe{Kind: wire.ProbeAnswer, ID: m.ID, Size: m.Size}
	if m.Kind == wire.ProbeRequest {
		answer.Kind, answer.Counted = wire.ProbeReport, p.engine.Gathered.Load() != nil
		answer.Ports = p.engine.PortCounts(nil)
		answer.Received = uint32(p.engine.Packets().Rx) // later: no fewer than all ports together
	}
	p.sendControl(keys, 0, wire.AppendProbe(nil, &answer))
}

// takeAnswer takes the answer to a probe of the path MTU, or of trains. The caller holds mu.
func (b *probing) takeAnswer(m *wire.Probe, now int64) {
	p := b.peer
	if !b.active() {
		return
	}
	if concluded, ok := b.prober.TrainsAnswered(now, m.ID); ok {
		if concluded {
			b.applyTrains()
		}
		return
	}
	size := m.Size + p.mtu.overhead
	if path, ok := b.prober.Answered(now, m.ID, size); ok {
		p.mtu.known.Refute(size, path)
		p.mtu.apply()
	}
}

// takeReport takes a report of the messages that the peer has received. The caller holds mu.
func (b *probing) takeReport(m *wire.Probe, now int64) {
	if !b.active() {
		return
	}
	ports := b.ports()
	r := probe.Report{ID: m.ID, Counted: m.Counted, On: make([]uint32, 1+len(ports))}
	r.On[0] = m.Received
	for _, c := range m.Ports {
		r.On[0] -= c.Messages
		if i := slices.Index(ports, c.Port); i >= 0 {
			r.On[1+i] = c.Messages
		}
	}
	if b.prober.Reported(now, &r, b.countSent()) {
		b.blockSources()
	}
}

// run sends the probes that are due. The caller holds mu.
func (b *probing) run(now int64) {
	p := b.peer
	p.mtu.update(now)
	if !b.mayProbe(now) {
		return
	}
	probes := b.prober.Fire(now, b.countSent())
	p.mtu.apply()
	if len(probes) == 0 {
		return
	}
	var messages []engine.ControlMessage
	for _, m := range probes {
		c, plain := engine.ControlMessage{}, wire.Probe{Kind: m.Kind, ID: m.ID, Size: wire.MinProbeSize}
		if m.Path > 0 {
			c.Source = int(b.sources()[m.Path-1])
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
func (b *probing) blockSources() {
	p := b.peer
	s := p.engine.Spread.Load()
	if s == nil || !s.SharesCounts(b.spread) {
		return
	}
	b.spread = s.Blocked(b.prober.Blocked)
	p.engine.Spread.Store(b.spread)
	p.spread.update()
	level := p.spread.log.Level(p.dev.clock(), slog.LevelInfo)
	if blocked := p.spread.report.Blocked; len(blocked) > 0 {
		p.log().Log(context.Background(), level, "the path drops messages from some spread source ports, sending their flows from the listen port until probes arrive",
			"peer", p.key, "blocked_ports", len(blocked), "source_ports", len(b.sources()), "first_blocked_port", blocked[0])
		return
	}
	p.log().Log(context.Background(), level, "the path admits all spread source ports again, spreading over all of them", "peer", p.key)
}

// resumeBlocked blocks the source ports that the path did not admit before an upgrade in place, until probes arrive. The caller holds mu.
func (b *probing) resumeBlocked(blocked []uint16) {
	known := false
	for i, port := range b.ports() {
		if slices.Contains(blocked, port) {
			b.prober.Block(b.peer.dev.clock(), i)
			known = true
		}
	}
	if known {
		b.blockSources()
	}
}

// probing tests the paths to one peer with probes, if the peer answers them. Peer.mu guards it.
type probing struct {
	trainsLost bool       // the last result of a test of trains on this path
	limit      trainLimit // that the port has for it
	retest     bool       // routes have changed: test trains in the turn of the next lookup
	peer       *Peer
	queue      probeQueue     // from lanes, without a lock
	echo       *echoState     // nil before the first ProbePeer
	prober     *probe.Prober  // nil before the first
	spread     *engine.Spread // whose sources are the paths from 1 on, nil for none
	sent       probe.Sent
}

// countSent returns the numbers of messages sent to the peer. The caller holds mu.
func (b *probing) countSent() *probe.Sent {
	p := b.peer
	s := &b.sent
	s.On, s.Data = append(s.On[:0], 0), p.engine.Data()
	if spread := b.spread; spread != nil {
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
func (b *probing) active() bool { return b.prober != nil && b.prober.State() != probe.Off }

// mayProbe reports whether to send probes to the peer: none while it roams with each message. The caller holds mu.
func (b *probing) mayProbe(now int64) bool {
	p := b.peer
	return b.active() && !p.location.roams.Due() && p.engine.Current.Load().Usable(now)
}

// get returns the prober. It makes the first.
func (b *probing) get() *probe.Prober {
	if b.prober == nil {
		b.prober = new(probe.Prober)
	}
	return b.prober
}

// stop ends the probes. The next ones begin with the path MTU that was found.
func (b *probing) stop() {
	if b.prober != nil {
		b.prober.Stop()
	}
}

// leavePath is stop after a change of the endpoint: the next probes have a new burst.
func (b *probing) leavePath() {
	if b.stop(); b.prober != nil {
		b.prober.Refill()
	}
}

// sources returns the sources from which the prober tests the path, besides the listen port.
func (b *probing) sources() []uint8 {
	if b.spread == nil {
		return nil
	}
	return b.spread.Sources()
}

// ports returns the ports of probing.sources. The caller holds mu.
func (b *probing) ports() (ports []uint16) {
	if ref := b.peer.dev.outer.port.Load(); ref != nil {
		for _, source := range b.sources() {
			ports = append(ports, ref.Source(int(source)))
		}
	}
	return ports
}

// updateSources has the prober test the sources that lanes use. It knows nothing of new ones. Through a NAT nothing is concluded: the peer
// counts by other ports. The caller holds mu.
func (b *probing) updateSources() {
	p := b.peer
	s := p.engine.Spread.Load()
	if s != nil && (len(s.Sources()) == 0 || p.hello.exchange.NAT != nil) {
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

// next returns when to call run, 0 for never. It has lanes call ProbeDue before, if need be. The caller holds mu.
func (b *probing) next(now int64) int64 {
	if !b.mayProbe(now) {
		return 0
	}
	tx := b.countSent()
	if b.spread != nil && b.spread.WakeAfter(tx.On[1:], b.prober.Wake(now, tx)) {
		return now
	}
	return b.prober.Next(now, tx)
}

// blockedPorts returns the source ports that the path to the peer does not admit. The caller holds mu.
func (b *probing) blockedPorts() (blocked []uint16) {
	for i, port := range b.ports() {
		if b.prober.Blocked(i) {
			blocked = append(blocked, port)
		}
	}
	return blocked
}

// sendEcho sends a probe of the minimum size, unless one is under way. The caller holds mu.
func (b *probing) sendEcho(keys *session.Keypair, now int64) {
	if b.echo == nil {
		b.echo = &echoState{}
	}
	e := b.echo
	if e.sentAt != 0 && now-e.sentAt < echoWait {
		return
	}
	e.sent++
	e.id, e.sentAt = echoID|uint32(e.sent), now
	b.peer.sendControl(keys, 0, wire.AppendProbe(nil, &wire.Probe{ID: e.id, Size: echoSize}))
}

// echoed takes the answer to the last probe of ProbePeer, and reports whether m is one. The caller holds mu.
func (b *probing) echoed(m *wire.Probe, now int64) bool {
	e := b.echo
	if e != nil && e.sentAt != 0 && m.ID == e.id {
		e.answered++
		e.rtt, e.sentAt = now-e.sentAt, 0
	}
	return m.ID&echoID != 0
}

// echoState counts the probes that ProbePeer sends. Peer.mu guards it.
type echoState struct {
	sent, answered uint64
	id             uint32 // of the last one; a search for the path MTU counts from 1 and never gets there
	sentAt         int64  // 0 if it was answered
	rtt            int64  // in ns, of the last answered one
}

// echoID is set in the ID of the probes that ProbePeer sends.
const echoID = 1 << 31

// echoWait is the time in ns to wait for an answer before another probe is sent. Callers call more
// often than that. A probe for each call would replace a probe whose answer is still on its way
// back.
const echoWait = int64(time.Second)

// echoSize is the size of a probe with WireGuard's padding.
const echoSize = wire.PaddingMultiple

// trainLimit is a limit that a port has by SetTrainsLost. The zero trainLimit is none.
type trainLimit struct {
	port underlay.TrainLimiter
	to   underlay.Destination
}

// applyTrains applies the result of a test of trains. The caller holds mu.
func (b *probing) applyTrains() {
	p := b.peer
	to, lost := p.engine.Endpoint.Load(), b.prober.TrainsLost()
	if to == nil {
		return
	}
	same := lost == b.trainsLost
	b.trainsLost = lost
	limited := b.limitTrains()
	if same {
		return
	}
	log := p.log().With("peer", p.key, "endpoint", to.Dst)
	switch {
	case !p.dev.pathMTULog.Allow(p.dev.clock(), time.Minute):
		log.Log(context.Background(), slog.LevelDebug, "trains to peer changed", "lost", lost, "limited", limited)
	case lost && !limited:
		log.Warn("trains of datagrams (UDP GSO) to peer are lost on the way while single ones arrive, and to too many others: " +
			"its bulk data is lost (doctor: fast-udp)")
	case lost:
		log.Warn("trains of datagrams (UDP GSO) to peer are lost on the way while single ones arrive, sending single ones: " +
			"the kernel, a network device or the hypervisor divides trains wrongly (doctor: fast-udp)")
	default:
		log.Info("trains of datagrams to peer arrive again, sending them in one piece")
	}
}

// limitTrains has the port send single datagrams to the peer if trains are lost, and reports whether it does. After a change of
// the peer's address it is unknown whether they are. The caller holds mu.
func (b *probing) limitTrains() bool {
	p, old := b.peer, b.limit
	if !b.trainsLost && old.port == nil {
		return false
	}
	at := trainLimit{port: p.dev.outer.trainLimiter()}
	if to := p.engine.Endpoint.Load(); to != nil {
		at.to = to.Destination()
	}
	moved := old.port != nil && old.to != at.to
	if b.trainsLost = b.trainsLost && !moved; moved || !b.trainsLost {
		b.unlimitTrains()
	}
	if !b.trainsLost || !p.running || at.port == nil || !at.port.SetTrainsLost(at.to, true) {
		return false
	}
	b.limit = at
	return true
}

// unlimitTrains ends the limit of trains. The caller holds mu.
func (b *probing) unlimitTrains() {
	if old := b.limit; old.port != nil {
		b.limit = trainLimit{}
		old.port.SetTrainsLost(old.to, false)
	}
}

// retestTrains requests another test of trains if that is due. The caller holds mu.
func (b *probing) retestTrains() {
	if b.retest && b.active() {
		b.prober.RetestTrains()
	}
	b.retest = false
}
