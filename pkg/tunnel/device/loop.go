// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// A message to an endpoint whose route leads into the tunnel would come back as a packet to encrypt, again and again. So the port refuses it, as
// the in-kernel WireGuard does (ELOOP, send4 in drivers/net/wireguard/socket.c). The kernel sees the route of each message. This device looks
// it up before each handshake message, and when the endpoint or the host's routes change.

// loopDestinations counts the peers at each destination that the port refuses.
type loopDestinations struct {
	mu    sync.Mutex
	peers map[loopDestination]int

	began, ended rate // of messages in the log: there may be thousands of such peers
}

// loopDestination is the part of an endpoint that routing knows; the zero loopDestination for none.
type loopDestination struct {
	addr  netip.Addr
	scope uint32
}

func (d loopDestination) endpoint() *underlay.Endpoint {
	return &underlay.Endpoint{Dst: netip.AddrPortFrom(d.addr, 0), Scope: d.scope}
}

// replace moves a peer from one destination to another. Destinations that a port has not heard of here reach it in attach.
func (l *loopDestinations) replace(at *atomic.Pointer[portRef], before, after loopDestination) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.peers == nil {
		l.peers = map[loopDestination]int{}
	}
	port := at.Load()
	if before.addr.IsValid() {
		if l.peers[before]--; l.peers[before] == 0 {
			delete(l.peers, before)
			port.setLoop(before, false)
		}
	}
	if after.addr.IsValid() {
		if l.peers[after]++; l.peers[after] == 1 {
			port.setLoop(after, true)
		}
	}
}

// setLoop tells the port, if there is one.
func (r *portRef) setLoop(d loopDestination, loops bool) {
	if r != nil {
		r.SetLoop(d.endpoint(), loops)
	}
}

// attach stores a new port, and tells it all destinations.
func (l *loopDestinations) attach(at *atomic.Pointer[portRef], port *portRef) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at.Store(port)
	for d := range l.peers {
		port.setLoop(d, true)
	}
}

// checkLoop looks up whether the route to an endpoint leads into the tunnel. The caller holds mu.
func (p *Peer) checkLoop(to *underlay.Endpoint) {
	if p.dev.cfg.Route == nil {
		return
	}
	if r, err := p.dev.routeTo(to); err == nil {
		p.setLoop(to, r.Loops)
	}
}

// setLoop notes whether the route to an endpoint leads into the tunnel. The caller holds mu.
func (p *Peer) setLoop(to *underlay.Endpoint, loops bool) {
	var next loopDestination
	if loops {
		next = loopDestination{to.Dst.Addr(), to.Scope}
	}
	before := p.path.loop
	if next == before {
		return
	}
	p.path.loop = next
	p.dev.loops.replace(&p.dev.port, before, next)
	p.logLoop(to, loops)
}

// logLoop logs that the route to an endpoint leads into the tunnel now, or does not any more.
func (p *Peer) logLoop(to *underlay.Endpoint, loops bool) {
	level, limit := slog.LevelInfo, &p.dev.loops.ended
	if loops {
		level, limit = slog.LevelWarn, &p.dev.loops.began
	}
	if !limit.allow(p.dev.clock(), time.Minute) {
		level = slog.LevelDebug
	}
	log := p.log().With("peer", p.key, "endpoint", to.Dst)
	if loops {
		log.Log(context.Background(), level, "the route to the peer's endpoint leads into the tunnel itself, dropping all messages to the peer until the route changes")
	} else {
		log.Log(context.Background(), level, "the route to the peer's endpoint does not lead into the tunnel any more, sending again")
	}
}

// isLooping reports whether the route to the peer leads into the tunnel, as far as it was looked up. The caller holds mu.
func (p *Peer) isLooping() bool { return p.path.loop != loopDestination{} }

// forgetLoop is called when the peer stops. The caller holds mu.
func (p *Peer) forgetLoop() {
	p.dev.loops.replace(&p.dev.port, p.path.loop, loopDestination{})
	p.path.loop = loopDestination{}
}
