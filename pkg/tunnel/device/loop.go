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
// it up before a handshake message, unless it knows the answer, and when the endpoint or the host's routes change.

// loopDestinations counts the peers at each destination that the port refuses.
type loopDestinations struct {
	mu    sync.Mutex
	peers map[loopDestination]int

	generation atomic.Uint64 // of the host's routes

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

// loopLookup is a lookup whose answer is known.
type loopLookup struct {
	to         underlay.Endpoint
	port       uint16
	mark       uint32
	generation uint64
	until      int64 // when it is forgotten: the kernel does not tell all changes
}

// loopLookupLifetime is longer than the time between two handshakes of a session, and shorter than anybody wants to search for a loop.
const loopLookupLifetime = int64(5 * time.Minute)

// checkLoop looks up whether the route to an endpoint leads into the tunnel, if that is not known. The caller holds mu.
func (p *Peer) checkLoop(to *underlay.Endpoint) {
	d, now := p.dev, p.dev.clock()
	if d.cfg.Route == nil {
		return
	}
	next := loopLookup{*to, d.localPort(), d.mark.Load(), d.loops.generation.Load(), p.path.looked.until}
	if next == p.path.looked && now < next.until {
		return
	}
	r, err := d.routeTo(to)
	if err != nil {
		return
	}
	p.setLoop(to, r.Loops)
	next.until = now + loopLookupLifetime
	p.path.looked = next
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
	p.path.loop, p.path.looked = next, loopLookup{}
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
	p.path.loop, p.path.looked = loopDestination{}, loopLookup{}
}
