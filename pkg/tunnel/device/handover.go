// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/endpoint"
)

// Snapshot returns the state of a running device for Resume of another one. That may take long, and
// this device goes on meanwhile: Changes, and Leave at the end, return the peers that have changed
// since, for Update. Until Leave or DiscardSnapshot, Configure fails. It is an error if the device
// has ended before, or was not started.
func (d *Device) Snapshot() (*State, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || !d.started {
		return nil, d.errCannotLeave()
	}
	d.changed.begin()
	return d.saveState(slices.Collect(maps.Values(d.peers.list))), nil
}

// ChangedPeers returns the number of peers that Changes would return.
func (d *Device) ChangedPeers() int { return d.changed.len() }

// Changes returns the peers that have changed since Snapshot or the last Changes. The device goes on.
func (d *Device) Changes() *State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.saveState(d.changed.take())
}

// DiscardSnapshot ends what Snapshot has begun, when there will be no Leave.
func (d *Device) DiscardSnapshot() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changed.end()
}

// errCannotLeave is the error for a device that cannot be handed over. The caller holds mu.
func (d *Device) errCannotLeave() error {
	return fmt.Errorf("handing over %s: the interface was deleted, or its daemon is ending: %w", d.cfg.TUN.Name(), syscall.ENODEV)
}

// Leave stops the device, and returns the state that another device needs to continue. After
// Snapshot it returns only the state that has changed since it was last returned. It first stops
// reading the TUN, then the port, so that all packets that were read are sent. Later packets wait
// in the kernel if another process keeps the descriptors (tun.HandoverDevice, udp.Port.Keep). The
// device sends nothing after Leave has returned. Its session keys last until Retire: erasing the
// keys of all peers takes long.
//
// Before all that, Leave calls keep, unless it is nil. The device neither opens nor closes a port from then on, until it is stopped, so keep can
// duplicate the port's sockets. The device goes on if keep returns an error. It is also an error if the device has ended before, or was not started.
func (d *Device) Leave(keep func() error) (*State, error) {
	if err := d.beginLeave(keep); err != nil {
		return nil, err
	}
	if err := d.cfg.TUN.StopReading(); err != nil {
		d.log.Warn("stopping reads from the TUN device failed, packets may be lost during the handover", "error", err)
	} else {
		d.engine.Wait()
	}
	d.drain()
	if err := d.cfg.TUN.Close(); err != nil {
		d.log.Warn("closing the TUN device for the handover failed, its descriptors close with this process: the new daemon has the same queues", "error", err)
	}
	<-d.done
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.changed.tracking.Load() {
		return d.saveState(d.changed.take()), nil
	}
	return d.saveState(slices.Collect(maps.Values(d.peers.list))), nil
}

// beginLeave makes the device ignore all link events from now on, unless it fails.
func (d *Device) beginLeave(keep func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || !d.started {
		return d.errCannotLeave()
	}
	if keep != nil {
		if err := keep(); err != nil {
			return err
		}
	}
	d.handingOver, d.closed = true, true
	return nil
}

// drain closes the port for Leave, once the lanes have handled all that they have read.
func (d *Device) drain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.outer.closeSources()
	if err := d.engine.Detach(); err != nil {
		d.log.Warn("closing the listen port for the handover failed, its descriptors close with this process: the new daemon has the same sockets", "error", err)
	}
	d.outer.close()
}

// CompleteState returns the state of all peers. After Leave, call it before Retire: only then are the sessions known.
func (d *Device) CompleteState() *State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.saveState(slices.Collect(maps.Values(d.peers.list)))
}

// Retire erases the session keys of a device after Leave, and returns its counters.
func (d *Device) Retire() *Counters {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changed.end()
	for _, p := range d.peers.list {
		p.stop()
	}
	d.staged.dropAll()
	return d.saveCounters()
}

// saveState returns the settings of the device and the state of some peers. The caller holds mu.
func (d *Device) saveState(peers []*Peer) *State {
	s := d.saveSettings()
	s.Peers = make([]PeerState, 0, len(peers))
	for _, p := range peers {
		s.Peers = append(s.Peers, p.saveState())
	}
	return s
}

// saveCounters returns the counters of a device that has ended. The caller holds mu.
func (d *Device) saveCounters() *Counters {
	c := &Counters{
		Stats: d.counts.traffic(), Handshakes: d.counts.handshakes.snapshot(), Peers: make([]PeerCounters, 0, len(d.peers.list)),
		TUNDropsBefore: d.counts.tunDropsBefore.Load(),
	}
	for _, p := range d.peers.list {
		if t := p.engine.Totals(); t != (engine.PeerTraffic{}) {
			c.Peers = append(c.Peers, PeerCounters{p.key, t})
		}
	}
	return c
}

// saveSettings returns a state with nothing but the settings of the device. The caller holds mu.
func (d *Device) saveSettings() *State {
	s := &State{
		PrivateKey: Secret(d.private), ListenPort: d.listenPort, FwMark: d.mark.Load(), Settings: d.configured(),
	}
	if *s.PostQuantum == config.DefaultPostQuantum { // not encoded
		s.PostQuantum = nil
	}
	return s
}

// Resume gives a new device the state that Leave or Snapshot returned. Once the device is up, it starts a handshake with each peer that
// had a session. Errors are from Configure.
func (d *Device) Resume(s *State) error {
	private := noise.PrivateKey(s.PrivateKey)
	c := config.Device{
		PrivateKey: &private, FwMark: &s.FwMark, Settings: s.Settings, ReplacePeers: true,
	}
	for i := range s.Peers {
		c.Peers = append(c.Peers, s.Peers[i].config())
	}
	d.mu.Lock()
	unused := !d.started && len(d.peers.list) == 0
	d.mu.Unlock()
	if !unused {
		return errors.New("resuming a device that is in use")
	}
	err := d.Configure(c)
	if err == nil { // after the spread ports, as the other device may have got it: then it may be one of them
		err = d.Configure(config.Device{ListenPort: &s.ListenPort})
	}
	if err != nil {
		return fmt.Errorf("resuming a device: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range s.Peers {
		if p := d.peers.list[s.Peers[i].PublicKey]; p != nil {
			d.restorePeer(p, &s.Peers[i])
		}
	}
	return nil
}

// Update gives a device that has resumed from a Snapshot, and was not started, what Changes or Leave of the same device returned afterwards. Its
// cost does not depend on the number of peers that have not changed.
func (d *Device) Update(changes *State) error {
	if err := d.Configure(config.Device{ListenPort: &changes.ListenPort}); err != nil {
		return fmt.Errorf("updating a device: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.started {
		return errors.New("updating a device that is in use")
	}
	for i := range changes.Peers {
		p := d.peers.list[changes.Peers[i].PublicKey]
		if p == nil {
			return errors.New("updating a device: it has no peer of this key")
		}
		d.restorePeer(p, &changes.Peers[i])
	}
	return nil
}

// restorePeer restores the state of one peer. The caller holds mu.
func (d *Device) restorePeer(p *Peer, s *PeerState) {
	p.restore(s)
	if s.Hello != nil {
		d.startFirst = append(d.startFirst, p.key)
	}
}

// AddCounters adds the counters of the device whose state this one has resumed. Call it once; the device may run.
func (d *Device) AddCounters(c *Counters) {
	stats := c.Stats // not a part of c: the engine keeps it
	d.engine.Resume(&stats)
	d.counts.handshakes.add(c.Handshakes)
	d.counts.tunDropsBefore.Store(c.TUNDropsBefore)
	for i := range c.Peers {
		if p := d.peers.lookup(c.Peers[i].PublicKey); p != nil {
			p.engine.AddTotals(c.Peers[i].Traffic)
		}
	}
}

// config returns the peer's configuration.
func (s *PeerState) config() config.Peer {
	psk := noise.PresharedKey(s.PresharedKey)
	c := config.Peer{PublicKey: s.PublicKey, Name: &s.Name, PresharedKey: &psk, Keepalive: &s.Keepalive, PostQuantum: &s.PostQuantum, ReplaceAllowedIPs: true}
	for _, prefix := range s.AllowedIPs {
		c.AllowedIPs = append(c.AllowedIPs, config.AllowedIP{Prefix: prefix})
	}
	return c
}

// changedPeers is the set of peers whose PeerState may have changed since it was last returned for
// a handover. So Leave need not look at all peers. A worker that has handled a peer counts as a
// change, whatever it did. Packets do not.
//
// Code that changes what PeerState holds calls Peer.noteChange: afterwards if it does not hold Peer.mu, else at any time while it holds it.
// Snapshot begins to track before it reads the first peer, and take empties the set before the peers are read, so no change is lost.
type changedPeers struct {
	tracking atomic.Bool // from Snapshot to DiscardSnapshot

	mu  sync.Mutex // taken after Peer.mu
	set map[*Peer]struct{}
}

// begin begins with an empty set.
func (c *changedPeers) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set = map[*Peer]struct{}{}
	c.tracking.Store(true)
}

func (c *changedPeers) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tracking.Store(false)
	c.set = nil
}

// take returns the set in no order, and empties it.
func (c *changedPeers) take() []*Peer {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := slices.Collect(maps.Keys(c.set))
	clear(c.set)
	return list
}

// len returns the size of the set.
func (c *changedPeers) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.set)
}

// handoverState is the part of a session that one device passes on to the next: the hello result, no key. Peer.mu guards it.
type handoverState struct {
	restored *HelloResult // from the previous device, until start uses it; nil for none
	lostAt   int64        // when this side lost a session with which the peer may still send, 0 for never; start renews it
}

// saveState returns the peer's state. A peer that does not run has no session, but may have the result that it got from the previous device.
func (p *Peer) saveState() PeerState {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := &p.handshake
	s := PeerState{
		PublicKey: p.key, Name: p.nameText(), PresharedKey: Secret(h.psk), Keepalive: p.timers.keepalive,
		AllowedIPs: p.dev.engine.Routes.Prefixes(p.engine), LastHandshake: h.completedAt,
		LastAccepted: Timestamp(h.lastAccepted), LastSent: Timestamp(h.lastSent), LastAcceptedAt: h.lastAcceptedAt, Hello: p.handover.restored,
		PathMTU: p.mtu.saved(), TrainsLost: p.probing.trainsLost, PostQuantum: p.quantum.own, Exchanges: p.quantum.save(),
	}
	if p.running {
		s.Hello = p.hello.save()
	}
	if to := p.engine.Endpoint.Load(); to != nil {
		s.Endpoint, s.Scope, s.Source = to.Dst, to.Scope, to.Src
	}
	s.EndpointName = p.location.name.String()
	return s
}

// restore restores the state of one peer for Device.Resume and Update.
func (p *Peer) restore(s *PeerState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.Endpoint.IsValid() {
		p.engine.Endpoint.Store(&underlay.Endpoint{Dst: s.Endpoint, Scope: s.Scope, Src: s.Source})
	}
	p.location.name = endpoint.NewName(s.EndpointName, config.Endpoint{AddrPort: s.Endpoint, Scope: s.Scope}, p.dev.clock())
	h := &p.handshake
	h.completedAt, h.lastAcceptedAt = s.LastHandshake, s.LastAcceptedAt
	h.lastAccepted, h.lastSent = noise.Timestamp(s.LastAccepted), noise.Timestamp(s.LastSent)
	h.clock.Resume(h.lastSent)
	p.handover.restored = s.Hello
	p.quantum.restore(s.Exchanges)
	p.probing.trainsLost = s.TrainsLost
	if s.PathMTU > 0 || p.probing.prober != nil { // the next search begins with it
		p.probing.get().Resume(int(s.PathMTU))
	}
}

// resumeHello restores the result of the hello exchange and starts a handshake, if the previous device had a session. The
// caller holds mu.
func (p *Peer) resumeHello(now int64) {
	s := p.handover.restored
	if p.handover.restored = nil; s == nil {
		return
	}
	p.hello.restore(s)
	p.mtu.update(now) // packets may wait for the session
	if p.timers.HandshakeWanted(now) {
		p.handshake.renew(now)
	}
}
