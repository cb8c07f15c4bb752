// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/endpoint"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/hello"
)

var (
	_ engine.SlowPath = (*Peer)(nil)
	_ peer.Waker      = (*Peer)(nil)
)

// Peer is the slow path of a peer. It connects the parts of the peer with each other, with the
// device and with the lanes, which call its engine.SlowPath methods.
type Peer struct {
	dev       *Device
	key       noise.PublicKey
	engine    *engine.Peer
	name      atomic.Pointer[string] // for people, nil for none; written under mu
	tasks     atomic.Uint32          // waiting tasks, as bits; the peer is in Device.tasks while not zero
	exchange  atomic.Bool            // the peer is in Device.exchangeTasks
	lastRekey atomic.Int64           // when a lane last requested a rekey

	mu       sync.Mutex // guards the fields below, and the parts of the peer unless they say otherwise
	running  bool       // the device is up and the peer is configured
	removed  bool       // from the configuration: lanes and workers may still know the peer
	timers   timerState
	handover handoverState

	handshake   handshakes
	sessions    sessions
	staged      stagedQueue // guarded by Device.staged alone: lanes use it
	hello       hellos
	quantum     quantum
	location    location
	spread      peerSpread
	probing     probing
	mtu         pathMTU
	reflections reflections
}

// newPeer returns a peer of a device. It does not run.
func newPeer(d *Device, key noise.PublicKey) *Peer {
	p := &Peer{dev: d, key: key}
	p.handshake.peer, p.sessions.peer, p.staged.peer, p.hello.peer, p.quantum.peer = p, p, p, p, p
	p.location.peer, p.spread.peer, p.probing.peer, p.mtu.peer = p, p, p, p
	p.hello.exchange.Reset(nil)
	return p
}

// Format prints the public key for every verb: a Peer holds secrets.
func (p *Peer) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "peer "+p.key.String()) }

// LogValue logs the public key.
func (p *Peer) LogValue() slog.Value { return slog.StringValue(p.key.String()) }

// start begins to serve the peer after the interface came up or the peer was added. The caller holds Device.mu.
func (p *Peer) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running { // else it was in startFirst, or has started by itself
		p.run()
	}
}

// isUp reports whether the peer runs, and starts it before its turn in peerSet.start. The caller holds mu.
func (p *Peer) isUp() bool {
	if !p.running && !p.removed && p.dev.starting.Load() {
		p.run()
	}
	return p.running
}

// run is start of a peer that does not run. The caller holds mu.
func (p *Peer) run() {
	p.running = true
	p.staged.updateRefusal()
	p.noteChange()
	p.spread.resetGroup()
	p.location.updateGuard()
	p.timers.SetKeepalive(p.timers.keepalive)
	p.timers.Start()
	p.hello.queue.Discard()
	p.hello.reset(hello.ErrNoSession)
	now := p.dev.clock()
	p.resumeHello(now)
	if lostAt := p.handover.lostAt; lostAt != 0 && now-lostAt < session.RejectAfterTime {
		p.handshake.renew(now)
	}
	p.handover.lostAt = 0
	switch {
	case p.handshake.remote == nil:
		p.staged.drop()
	case p.staged.has():
		p.post(taskHandshake)
	}
	p.armTimer(now)
}

// stop erases all sessions and stops the timers. Staged packets stay until stagedQueue.drop. The caller holds Device.mu.
func (p *Peer) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running {
		if now := p.dev.clock(); p.sessions.isLive(now) || p.dev.renewals.Concerns(p) {
			p.handover.lostAt = now
		}
	}
	p.running = false
	p.staged.updateRefusal()
	p.noteChange()
	p.dev.renewals.Leave(p)
	p.handover.restored, p.handshake.retryAt = nil, 0
	p.location.roams.Cancel()
	p.stopTimer()
	p.timers.Stop(&p.engine.Activity)
	p.sessions.erase()
	p.quantum.machine.Load().Erase()
	p.mtu.forget()
	p.probing.unlimitTrains()
	p.location.forgetLoop()
	p.handshake.endAttempt()
	p.handshake.initiateAt = 0
	p.location.setGuarded(config.Endpoint{})
}

// log returns the device's log, with the peer's name if it has one.
func (p *Peer) log() *slog.Logger {
	if name := p.name.Load(); name != nil {
		return p.dev.log.With("name", *name)
	}
	return p.dev.log
}

// nameText returns the peer's name, empty for none.
func (p *Peer) nameText() string {
	if name := p.name.Load(); name != nil {
		return *name
	}
	return ""
}

// configureName sets the peer's name; empty removes it.
func (p *Peer) configureName(name string) {
	if name == "" {
		p.name.Store(nil)
		return
	}
	p.name.Store(&name)
}

// noteSession reports that a session began or that its endpoint changed.
func (p *Peer) noteSession() {
	if changed := p.dev.cfg.OnSession; changed != nil {
		changed()
	}
}

// peerName returns the names of a peer. The caller holds mu.
func (p *Peer) peerName() config.PeerName {
	return config.PeerName{Name: p.nameText(), EndpointName: p.location.name.String()}
}

// dropForPeer counts n packets to the peer as dropped.
func (p *Peer) dropForPeer(why drop.Reason, n int) { p.dev.engine.DropForPeer(p.engine, why, n) }

// requestRoute has the route to the peer looked up. It needs no lock.
func (p *Peer) requestRoute() { p.post(taskRoute) }

// sendControl sends a hello or a probe from a source.
func (p *Peer) sendControl(keys *session.Keypair, source int, plain []byte) {
	p.dev.engine.SendControl(p.engine, keys, engine.ControlMessage{Source: source, Plain: plain})
}

// noteChange adds the peer to the changed ones. It costs one load unless there is a snapshot.
func (p *Peer) noteChange() {
	c := &p.dev.changed
	if !c.tracking.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.set != nil {
		c.set[p] = struct{}{}
	}
}

// configure applies a change of preshared key, endpoint and keepalive interval.
func (p *Peer) configure(c *config.Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Name != nil {
		p.configureName(*c.Name)
	}
	if c.PresharedKey != nil {
		p.handshake.psk = *c.PresharedKey
	}
	if c.PostQuantum != nil {
		p.quantum.own = *c.PostQuantum
		p.quantum.updatePolicy()
	}
	if c.ForgetPostQuantum {
		p.quantum.machine.Load().Forget()
		p.noteChange()
		p.noteSession()
	}
	if c.Endpoint != nil {
		at := c.Endpoint.AddrPort
		to := &underlay.Endpoint{Dst: netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), Scope: c.Endpoint.Scope}
		p.location.name = endpoint.NewName(c.EndpointName, config.Endpoint{AddrPort: to.Dst, Scope: to.Scope}, p.dev.clock())
		if p.location.configure(to) {
			p.hello.renew(true)
		}
		if p.running {
			p.location.updateGuard()
		}
	}
	if c.Keepalive != nil && *c.Keepalive != p.timers.keepalive {
		p.timers.keepalive = *c.Keepalive
		if p.running {
			p.timers.SetKeepalive(p.timers.keepalive)
			p.armTimer(p.dev.clock())
		}
	}
}

func (p *Peer) status() config.PeerStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := config.PeerStatus{
		PublicKey:     p.key,
		Name:          p.nameText(),
		PresharedKey:  p.handshake.psk,
		LastHandshake: p.handshake.completedAt,
		Keepalive:     p.timers.keepalive,
		AllowedIPs:    p.dev.engine.Routes.Prefixes(p.engine),
	}
	if to := p.engine.Endpoint.Load(); to != nil {
		s.Endpoint = config.Endpoint{AddrPort: to.Dst, Scope: to.Scope}
	}
	s.EndpointName = p.location.name.String()
	s.RxBytes, s.TxBytes = p.engine.Traffic()
	s.Handshake = p.handshake.report()
	s.PostQuantum = p.quantum.report(p.dev.clock())
	s.Spread, s.PathMTU, s.Packets = p.spread.report, p.mtu.report(), config.PeerPackets(p.engine.Packets())
	return s
}
