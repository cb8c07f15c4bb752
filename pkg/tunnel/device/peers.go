// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
)

// lookup returns the peer with that key, or nil.
func (s *peerSet) lookup(key noise.PublicKey) *Peer {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.list[key]
}

// peerSet is the peers of a device. Device.mu guards writes of list.
type peerSet struct {
	dev  *Device
	mu   sync.RWMutex // guards list for readers that do not hold Device.mu
	list map[noise.PublicKey]*Peer
}

// check returns an error if the change could leave more than MaxPeers peers.
func (s *peerSet) check(c *config.Device) error {
	n := len(c.Peers)
	if !c.ReplacePeers {
		n = len(s.list)
		for i := range c.Peers {
			if s.list[c.Peers[i].PublicKey] == nil && !c.Peers[i].Remove && !c.Peers[i].UpdateOnly {
				n++
			}
		}
	}
	if n > MaxPeers {
		return fmt.Errorf("configuring %d peers, at most %d are possible: %w", n, MaxPeers, ErrTooManyPeers)
	}
	return nil
}

// configure applies changes of peers in order. They cannot fail.
func (s *peerSet) configure(changes []config.Peer) {
	var routes []routeChange
	for i := range changes {
		c := &changes[i]
		if c.Remove {
			s.configureRoutes(routes)
			routes = routes[:0]
			s.remove(s.list[c.PublicKey])
		} else if p := s.configureOne(c); p != nil && (c.ReplaceAllowedIPs || len(c.AllowedIPs) > 0) {
			routes = append(routes, routeChange{p.engine, c})
		}
	}
	s.configureRoutes(routes)
}

// configureOne applies one change except its allowed IPs, and returns the peer, nil for none.
func (s *peerSet) configureOne(c *config.Peer) *Peer {
	d := s.dev
	if id := d.identity.Load(); id != nil && id.Public() == c.PublicKey {
		return nil // as stock devices do
	}
	p := s.list[c.PublicKey]
	if p == nil && c.UpdateOnly {
		return nil
	}
	created := p == nil
	if created {
		p = s.add(c.PublicKey)
	}
	p.configure(c)
	if created {
		p.location.recall()
	}
	if created && d.up {
		p.start()
	}
	return p
}

func (s *peerSet) add(key noise.PublicKey) *Peer {
	d := s.dev
	p := newPeer(d, key)
	p.engine = d.engine.NewPeer(p)
	p.engine.Activity.Waker = p
	p.mu.Lock()
	p.handshake.setIdentity(d.identity.Load())
	p.quantum.updatePolicy()
	p.mu.Unlock()
	s.mu.Lock()
	s.list[key] = p
	s.mu.Unlock()
	return p
}

// configureRoutes applies all changes of allowed IPs in one update. One update per peer would copy parts of the table each
// time, and produce garbage.
func (s *peerSet) configureRoutes(changes []routeChange) {
	if len(changes) == 0 {
		return
	}
	s.dev.engine.Routes.Update(func(e *peer.Editor[*engine.Peer]) {
		for _, c := range changes {
			c.apply(e)
		}
	})
}

// remove removes peers and skips nil ones. The caller holds mu.
func (s *peerSet) remove(list ...*Peer) {
	list = slices.DeleteFunc(list, func(p *Peer) bool { return p == nil })
	if len(list) == 0 {
		return
	}
	s.dev.engine.Routes.Update(func(e *peer.Editor[*engine.Peer]) {
		for _, p := range list {
			e.RemoveOwner(p.engine)
		}
	})
	for _, p := range list {
		p.stop()
		p.mu.Lock()
		p.removed = true
		p.staged.updateRefusal() // before the rest, so that lanes add nothing
		p.staged.drop()
		p.mu.Unlock()
		s.mu.Lock()
		delete(s.list, p.key)
		s.mu.Unlock()
	}
}

// routeChange is a change of one peer's allowed IPs.
type routeChange struct {
	lane *engine.Peer
	to   *config.Peer
}

func (c routeChange) apply(e *peer.Editor[*engine.Peer]) {
	if c.to.ReplaceAllowedIPs {
		e.RemoveOwner(c.lane)
	}
	for _, a := range c.to.AllowedIPs {
		if a.Remove {
			e.Remove(a.Prefix, c.lane)
		} else {
			e.Add(a.Prefix, c.lane)
		}
	}
}

// renewHellos restarts the exchange with every peer. moved means that the local endpoint changed. The caller holds mu.
func (s *peerSet) renewHellos(moved bool) {
	for p := range s.locked() {
		p.hello.renew(moved)
	}
}

// updateSpray tells all peers that the configuration of spraying has changed. The caller holds Device.mu.
func (s *peerSet) updateSpray() {
	for p := range s.locked() {
		p.spread.update()
		p.hello.queryAgain()
	}
}

// locked iterates over the peers with their mu held. The caller holds Device.mu or mu.
func (s *peerSet) locked() iter.Seq[*Peer] {
	return func(yield func(*Peer) bool) {
		for _, p := range s.list {
			p.mu.Lock()
			more := yield(p)
			p.mu.Unlock()
			if !more {
				return
			}
		}
	}
}

// each calls f with each peer's key in base64, while it holds the peer's mu. It takes no lock that configuration holds for long.
func (s *peerSet) each(f func(key string, p *Peer)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for key, p := range s.list {
		p.mu.Lock()
		f(key.Base64(), p)
		p.mu.Unlock()
	}
}

// byEngine returns all peers by their part in the engine. It takes no lock that configuration holds for long.
func (s *peerSet) byEngine() map[*engine.Peer]*Peer {
	s.mu.RLock()
	defer s.mu.RUnlock()
	peers := make(map[*engine.Peer]*Peer, len(s.list))
	for _, p := range s.list {
		peers[p.engine] = p
	}
	return peers
}

func (s *peerSet) byEndpoint() map[netip.AddrPort][]*Peer {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make(map[netip.AddrPort][]*Peer, len(s.list))
	for _, p := range s.list {
		if to := p.engine.Endpoint.Load(); to != nil {
			all[to.Dst] = append(all[to.Dst], p)
		}
	}
	return all
}

// start starts all peers, first the peers that had a session: with many peers the rest takes long.
// A peer with traffic does not wait for its turn (Peer.isUp). The caller holds mu.
func (s *peerSet) start() {
	d := s.dev
	d.starting.Store(true)
	defer d.starting.Store(false)
	d.readTUN()
	for _, key := range d.startFirst {
		if p := s.list[key]; p != nil {
			p.start()
		}
	}
	d.startFirst = nil
	for _, p := range s.list {
		p.start()
	}
}

// byIndex returns the peer of a local receiver index, or nil.
func (s *peerSet) byIndex(index uint32) *Peer {
	found, ok := s.dev.engine.Sessions.Lookup(index)
	if !ok {
		return nil
	}
	return found.Peer.SlowPath.(*Peer)
}
