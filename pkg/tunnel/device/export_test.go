// SPDX-License-Identifier: Apache-2.0

package device

import (
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/toobig"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/postquantum"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/admission"
)

// The limits that tests exercise.
const (
	MaxStaged         = maxStaged
	MaxStagedBytes    = maxStagedBytes
	MaxStagedTotal    = maxStagedTotal
	HandshakeQueueLen = admission.QueueLen
	UnderLoadLen      = admission.LoadLen
	CookieGroupBurst  = admission.CookieBurst / 2
	CookieBurst       = admission.CookieBurst
	CookieRate        = int(admission.CookieBurst * time.Second / admission.CookieFade)
	TimerSlack        = slack
)

// Coalesced returns when a timer for the instant at fires.
func Coalesced(now, at int64) int64 { return coalesce(now, at) }

// Earlier sets the timestamp of the peer's last initiation, as Resume does.
func (p *Peer) Earlier(t noise.Timestamp) { p.restore(&PeerState{LastSent: Timestamp(t)}) }

// Sign returns the timestamp of the next initiation if the wall clock shows wall.
func (p *Peer) Sign(wall time.Time) noise.Timestamp { return p.handshake.clock.Now(wall) }

// Source returns the local address from which messages to the peer leave, invalid if routing chooses it.
func (p *Peer) Source() netip.Addr { return p.engine.Endpoint.Load().Src }

// Follow applies an event of a device that was not started.
func (d *Device) Follow(ev tun.Event) { d.applyLinkEvent(ev) }

// TakeStreamBudget takes the memory for replay windows of streams that is left, until the result is called.
func (d *Device) TakeStreamBudget() (release func()) {
	var taken []*session.Keypair
	for {
		keys, _ := session.NewKeypair(new(noise.Keys), 0) // an error only with a key of another length
		taken = append(taken, keys)
		if !d.engine.AnnounceStreams(keys) {
			return func() {
				for _, k := range taken {
					k.Wipe()
				}
			}
		}
	}
}

// Shut takes down a device that was not started.
func (d *Device) Shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down()
	d.staged.dropAll()
}

// Step runs all waiting work of a device that was not started, and returns the number of items.
func (d *Device) Step() (n int) {
	for {
		if !d.runUrgent() {
			select {
			case <-d.exchangeTasks.waiting:
				d.runExchange()
			default:
				return n
			}
		}
		n++
	}
}

// Work runs a worker of a device that was not started for a second.
func (d *Device) Work() {
	time.AfterFunc(time.Second, func() { close(d.stop) })
	d.runWorker()
}

// AskForExchange posts the task of the exchanges with a peer.
func (p *Peer) AskForExchange() { p.postExchange() }

// ExchangeWaits reports whether that task has not begun.
func (p *Peer) ExchangeWaits() bool { return p.exchange.Load() }

// StepHandshakes is Step without tasks. It returns the result of each message.
func (d *Device) StepHandshakes() (reasons []drop.Reason) {
	for len(d.inbound.gate.Reserved()) > 0 {
		reasons = append(reasons, d.inbound.take(<-d.inbound.gate.Reserved()))
	}
	for len(d.inbound.gate.Shared()) > 0 {
		reasons = append(reasons, d.inbound.take(<-d.inbound.gate.Shared()))
	}
	return reasons
}

// QueuedHandshakes returns the number of handshake messages that wait for a worker.
func (d *Device) QueuedHandshakes() int { return d.inbound.gate.Waiting() }

// KnownEndpoints returns the number of peers whose endpoint is known.
func (d *Device) KnownEndpoints() int { return d.inbound.gate.Endpoints.Len() }

// StagedBytes returns the memory of the packets staged for peers without a session.
func (d *Device) StagedBytes() int {
	d.staged.mu.Lock()
	defer d.staged.mu.Unlock()
	return d.staged.bytes
}

// LimitRenewals sets the number of sessions that are renewed at the same time.
func (d *Device) LimitRenewals(n int) {
	d.renewals.SetLimit(n)
}

// LoseHandshake ends the handshake with a peer and its timer, as a lost wake-up would, while packets wait.
func (p *Peer) LoseHandshake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handshake.endAttempt()
	p.stopTimer()
	p.timers.Stop(&p.engine.Activity)
	p.timers.Start()
}

// Forget erases the sessions with the peer, and permits another handshake at once.
func (p *Peer) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sessions.erase()
	p.handshake.endAttempt()
	p.timers.IdentityReplaced(p.dev.clock())
	p.post(taskHandshake)
}

// Renewals returns the number of peers that have their turn and of those that wait for one.
func (d *Device) Renewals() (running, waiting int) {
	return d.renewals.Count()
}

// PeerOf returns a peer, or nil.
func (d *Device) PeerOf(key noise.PublicKey) *Peer { return d.peers.lookup(key) }

// Indices is the number of receiver indices in use.
func (d *Device) Indices() int { return d.engine.Sessions.Len() }

// Timers is the number of peers' timers that are set.
func (d *Device) Timers() (n int) {
	d.peers.mu.RLock()
	defer d.peers.mu.RUnlock()
	for _, p := range d.peers.list {
		p.mu.Lock()
		if p.timers.timer != nil {
			n++
		}
		p.mu.Unlock()
	}
	return n
}

// Initiate sends an initiation, however recent the last one is.
func (p *Peer) Initiate() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handshake.sendInitiation(p.dev.clock())
}

// Occupy holds the peer's lock until letGo is called.
func (p *Peer) Occupy() (letGo func()) {
	p.mu.Lock()
	return p.mu.Unlock
}

// Sessions returns the key pair to send with, and the one that waits for confirmation.
func (p *Peer) Sessions() (current, unconfirmed *session.Keypair) {
	return p.engine.Current.Load(), p.engine.Unconfirmed.Load()
}

// BetweenPorts calls f while a port is being replaced by another.
func (d *Device) BetweenPorts(port underlay.Port, f func()) {
	d.outer.closeSources()
	f()
	d.outer.groups.Reset(port)
}

// OnTooBig passes an ICMP error to the device.
func (d *Device) OnTooBig(m *toobig.Message) { d.icmp.accept(m) }

// SendGroup returns the send group of data messages to the peer.
func (p *Peer) SendGroup() int { return int(p.engine.SendGroup.Load()) }

// Key returns the peer's public key.
func (p *Peer) Key() noise.PublicKey { return p.key }

// ReserveLookUp returns the time at which one more peer may look up its route.
func (d *Device) ReserveLookUp(now int64) int64 { return d.routeTurns.Reserve(now) }

// WhileStarting calls f as if peers were being started, and the turn of none had come.
func (d *Device) WhileStarting(f func()) {
	d.starting.Store(true)
	defer d.starting.Store(false)
	f()
}

// BeginSession gives the peer a session with fixed keys, as a handshake would.
func (p *Peer) BeginSession() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.dev.clock()
	b, err := p.sessions.reserve()
	if err != nil {
		return err
	}
	if b.keys, err = session.NewKeypair(&noise.Keys{Local: b.index, Initiator: true}, now); err != nil {
		return err
	}
	p.timers.SessionDerived(now)
	p.handshake.complete(b, now)
	p.sessions.establish(b, true)
	p.armTimer(now)
	return nil
}

// Keys returns the keys of post-quantum exchanges with a peer.
func (d *Device) Keys(peer noise.PublicKey) []postquantum.Entry {
	p := d.peers.lookup(peer)
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.quantum.machine.Load().Keys()
}

// UsedKeys returns how many of them have keyed a session.
func (d *Device) UsedKeys(peer noise.PublicKey) (n int) {
	for _, e := range d.Keys(peer) {
		if e.Used {
			n++
		}
	}
	return n
}

// PutKey gives a peer a key, as an exchange does.
func (d *Device) PutKey(peer noise.PublicKey, key noise.PresharedKey, id uint16) {
	p := d.peers.lookup(peer)
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.quantum.machine.Load()
	m.Restore([]postquantum.Entry{{Key: key, ID: id, At: d.clock(), Certain: true}}, m.Had())
}

// MachineResumedKeepingKeys is MachineResumed without the erasure of keys of post-quantum exchanges.
func (d *Device) MachineResumedKeepingKeys() {
	d.peers.mu.RLock()
	defer d.peers.mu.RUnlock()
	for _, p := range d.peers.list {
		p.mu.Lock()
		entries := p.quantum.machine.Load().Keys()
		p.sessions.erase()
		p.quantum.machine.Load().Restore(entries, p.quantum.machine.Load().Had())
		p.handshake.renew(d.clock())
		p.armTimer(d.clock())
		p.mu.Unlock()
	}
}

// EffectiveKey returns the preshared key that a handshake with the key of an id has.
func (d *Device) EffectiveKey(peer noise.PublicKey, psk noise.PresharedKey, id uint16) noise.PresharedKey {
	p := d.peers.lookup(peer)
	p.mu.Lock()
	defer p.mu.Unlock()
	e, _ := p.quantum.machine.Load().PresharedKey(postquantum.Key{ID: id, Named: true}, &psk)
	return e
}

// PartsAfterOtherTask has a part of an exchange arrive, runs another task of the peer, and returns the number of parts that wait.
func (d *Device) PartsAfterOtherTask(peer noise.PublicKey) int {
	p := d.peers.lookup(peer)
	p.quantum.machine.Load().Put(wire.AppendKEMPart(nil, wire.KEMKey, make([]byte, wire.KEMKeySize), 0), nil, d.clock())
	p.runTasks(taskRenew)
	return len(p.quantum.machine.Load().Take())
}

// Exchanges returns the number of peers that have their turn in exchanges.
func (d *Device) Exchanges() int {
	running, _ := d.exchanges.Count()
	return running
}

// HelloOf returns the last hello of a peer.
func (d *Device) HelloOf(peer noise.PublicKey) wire.Hello {
	p := d.peers.lookup(peer)
	p.mu.Lock()
	defer p.mu.Unlock()
	return *p.hello.exchange.Remote
}

// OpenSources returns the number of spread source ports that are open.
func (d *Device) OpenSources() int { return d.outer.sources.Len() }
