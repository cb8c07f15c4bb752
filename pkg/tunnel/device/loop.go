// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/pace"
)

// A message to an endpoint whose route leads into the tunnel would come back as a packet to encrypt, again and again. So the port refuses it, as
// the in-kernel WireGuard does (ELOOP, send4 in drivers/net/wireguard/socket.c). The kernel sees the route of each message. This device looks
// it up before a handshake message, unless it knows the answer, and when the endpoint or the host's routes change.

// loopDestinations counts the peers at each destination that the port refuses.
type loopDestinations struct {
	mu    sync.Mutex
	peers map[underlay.Destination]int

	generation atomic.Uint64 // of the host's routes

	began, ended pace.Rate // of messages in the log: there may be thousands of such peers
}

// replace moves a peer from one destination to another. Destinations that a port has not heard of here reach it in attach.
func (l *loopDestinations) replace(at *atomic.Pointer[portRef], before, after underlay.Destination) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.peers == nil {
		l.peers = map[underlay.Destination]int{}
	}
	port := at.Load()
	if before.Addr.IsValid() {
		if l.peers[before]--; l.peers[before] == 0 {
			delete(l.peers, before)
			port.setLoop(before, false)
		}
	}
	if after.Addr.IsValid() {
		if l.peers[after]++; l.peers[after] == 1 {
			port.setLoop(after, true)
		}
	}
}

// setLoop tells the port, if there is one.
func (r *portRef) setLoop(d underlay.Destination, loops bool) {
	if r != nil {
		r.SetLoop(d, loops)
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
	to         *underlay.Endpoint
	port       uint16
	mark       uint32
	generation uint64
	until      int64 // when it is forgotten: the kernel does not tell all changes
}

// loopLookupLifetime is longer than the time between two handshakes of a session, and shorter than anybody wants to search for a loop.
const loopLookupLifetime = int64(5 * time.Minute)

// checkLoop looks up whether the route to an endpoint leads into the tunnel, if that is not known. The caller holds mu.
func (l *location) checkLoop(to *underlay.Endpoint) {
	p := l.peer
	d, now := p.dev, p.dev.clock()
	if d.cfg.Loops == nil {
		return
	}
	next := loopLookup{to, d.outer.localPort(), d.mark.Load(), d.loops.generation.Load(), l.looked.until}
	if next == l.looked && now < next.until {
		return
	}
	loops, err := d.cfg.Loops(to, next.port, next.mark)
	if err != nil {
		return
	}
	l.setLoop(to, loops)
	next.until = now + loopLookupLifetime
	l.looked = next
}

// setLoop notes whether the route to an endpoint leads into the tunnel. The caller holds mu.
func (l *location) setLoop(to *underlay.Endpoint, loops bool) {
	p := l.peer
	var next underlay.Destination
	if loops {
		next = to.Destination()
	}
	before := l.loop
	if next == before {
		return
	}
	l.loop, l.looked = next, loopLookup{}
	p.dev.loops.replace(&p.dev.outer.port, before, next)
	l.logLoop(to, loops)
}

// logLoop logs that the route to an endpoint leads into the tunnel now, or does not any more.
func (l *location) logLoop(to *underlay.Endpoint, loops bool) {
	p := l.peer
	level, limit := slog.LevelInfo, &p.dev.loops.ended
	if loops {
		level, limit = slog.LevelWarn, &p.dev.loops.began
	}
	if !limit.Allow(p.dev.clock(), time.Minute) {
		level = slog.LevelDebug
	}
	log := p.log().With("peer", p.key, "endpoint", to.Dst)
	if loops {
		log.Log(context.Background(), level, "the route to the peer's endpoint leads into the tunnel itself, or through another tunnel back, dropping all messages to the peer until the route changes")
	} else {
		log.Log(context.Background(), level, "the route to the peer's endpoint does not lead into the tunnel any more, sending again")
	}
}

// isLooping reports whether the route to the peer leads into the tunnel, as far as it was looked up. The caller holds mu.
func (l *location) isLooping() bool { return l.loop != underlay.Destination{} }

// forgetLoop is called when the peer stops. The caller holds mu.
func (l *location) forgetLoop() {
	p := l.peer
	p.dev.loops.replace(&p.dev.outer.port, l.loop, underlay.Destination{})
	l.loop, l.looked = underlay.Destination{}, loopLookup{}
}
