// SPDX-License-Identifier: Apache-2.0

package device

import (
	"cmp"
	"container/list"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Resolved is the result of a lookup.
type Resolved struct {
	Endpoints []config.Endpoint // in order of preference
	TTL       time.Duration     // of the name's records; 0 if unknown
}

// Bounds of the time between two lookups of an endpoint's name.
const (
	defaultTTL  = int64(5 * time.Minute)  // without a known TTL
	minTTL      = int64(30 * time.Second) // of records with a shorter one
	maxTTL      = int64(time.Hour)
	lookupPause = int64(10 * time.Second) // while handshakes fail, unless the TTL is longer
	failureTTL  = int64(30 * time.Second) // while handshakes fail, at most
)

const (
	lookupTimeout = 10 * time.Second
	// maxLookups is the maximum number of concurrent lookups. Each takes at least lookupInterval: a thousand peers may fail at once.
	maxLookups     = 8
	lookupInterval = 100 * time.Millisecond
)

// lookups are the lookups of endpoints' names, in the order in which they were requested. Goroutines exist only while lookups wait or run.
// The lock comes after Peer.mu.
type lookups struct {
	mu      sync.Mutex
	waiting list.List // of lookup
	running int       // goroutines
}

// lookup is one lookup. Each peer has one at most (endpointName.running).
type lookup struct {
	peer *Peer
	name string
	mark uint32
}

// endpointName is the name from which a peer's endpoint was resolved. Peer.mu guards it. No timer belongs to it: handshakes look the name up
// again, so that an idle peer costs nothing.
type endpointName struct {
	name    string            // host:port
	known   []config.Endpoint // its addresses at the last lookup; nil if unknown
	last    int64             // when it was looked up; by Device.clock
	ttl     int64             // ns, 0 if unknown
	running bool
}

// configureEndpointName sets the name from which the endpoint was resolved; an empty name removes it. The caller holds mu.
func (p *Peer) configureEndpointName(name string, endpoint config.Endpoint) {
	if name == "" {
		p.path.name = nil
		return
	}
	p.path.name = &endpointName{name: name, known: []config.Endpoint{endpoint}, last: p.dev.clock()}
}

// endpointName returns the name of the endpoint, empty for none. The caller holds mu.
func (p *Peer) endpointName() string {
	if p.path.name == nil {
		return ""
	}
	return p.path.name.name
}

// handshakeFails reports whether an initiation before the last one was not answered. The caller holds mu.
func (p *Peer) handshakeFails() bool { return p.handshake.unanswered > 1 }

// lookUpEndpoint looks the endpoint's name up again if its addresses are old, or sooner if handshakes fail. The caller holds mu.
func (p *Peer) lookUpEndpoint(now int64) {
	n := p.path.name
	if n == nil || n.running || p.dev.cfg.Resolve == nil {
		return
	}
	due, mark := n.last+cmp.Or(n.ttl, defaultTTL), uint32(0)
	if p.handshakeFails() {
		// The mark keeps the query out of this tunnel, which may be the default route.
		due, mark = n.last+min(max(n.ttl, lookupPause), failureTTL), p.dev.mark.Load()
	}
	if now < due {
		return
	}
	n.running = true
	p.dev.requestLookup(lookup{p, n.name, mark})
}

// requestLookup appends a lookup, and starts a goroutine for it unless maxLookups of them run.
func (d *Device) requestLookup(l lookup) {
	q := &d.lookups
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting.PushBack(l)
	if q.running < maxLookups {
		q.running++
		d.workers.Go(d.runLookups)
	}
}

// next removes the first lookup. Without one, the calling goroutine ends.
func (q *lookups) next() (lookup, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	first := q.waiting.Front()
	if first == nil {
		q.running--
		return lookup{}, false
	}
	return q.waiting.Remove(first).(lookup), true
}

// runLookups makes one lookup per lookupInterval, until none waits.
func (d *Device) runLookups() {
	for l, ok := d.lookups.next(); ok; l, ok = d.lookups.next() {
		pause := time.NewTimer(lookupInterval)
		l.peer.resolve(l.name, l.mark)
		select {
		case <-pause.C:
		case <-d.stop:
			pause.Stop()
			return
		}
	}
}

// resolve looks the name up, unless the endpoint has another one or the peer was removed meanwhile.
func (p *Peer) resolve(name string, mark uint32) {
	d := p.dev
	p.mu.Lock()
	unused := !p.running || p.endpointName() != name
	if unused && p.path.name != nil {
		p.path.name.running = false
	}
	p.mu.Unlock()
	if unused {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	go func() {
		select {
		case <-d.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	r, err := d.cfg.Resolve(ctx, name, mark)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.endpointName() == name {
		p.noteLookup(r, err, d.clock())
	}
}

// noteLookup applies the result of a lookup. The caller holds mu.
func (p *Peer) noteLookup(r Resolved, err error, now int64) {
	n := p.path.name
	n.running, n.last = false, now
	if err != nil || len(r.Endpoints) == 0 {
		n.ttl = minTTL
		level := slog.LevelWarn
		if !p.dev.failuresLog.Allow(now, time.Minute) {
			level = slog.LevelDebug
		}
		p.log().Log(context.Background(), level, "resolving the endpoint name failed, keeping the present address: a later handshake retries",
			"peer", p.key, "endpoint_name", n.name, "error", err)
		return
	}
	n.ttl = 0
	if r.TTL > 0 {
		n.ttl = min(max(int64(r.TTL), minTTL), maxTTL)
	}
	to, move := chooseEndpoint(p.engine.Endpoint.Load(), n.known, r.Endpoints, p.handshakeFails())
	n.known = r.Endpoints
	if move {
		p.moveToResolved(to, now)
	}
}

// chooseEndpoint returns the address to use after a lookup, and whether it differs from the present one. An address that works stays, also if
// the peer has roamed there, unless the name had it and has it no more. An address that does not work is replaced by the name's next one.
func chooseEndpoint(from *underlay.Endpoint, known, resolved []config.Endpoint, failing bool) (to config.Endpoint, move bool) {
	if from == nil {
		return resolved[0], true
	}
	present := config.Endpoint{AddrPort: from.Dst, Scope: from.Scope}
	i := slices.Index(resolved, present)
	switch {
	case i >= 0 && failing:
		to = resolved[(i+1)%len(resolved)]
	case i < 0 && (failing || slices.Contains(known, present)):
		to = resolved[0]
	default:
		return present, false
	}
	return to, to != present
}

// moveToResolved sets another address of the endpoint's name, and starts a handshake there. The caller holds mu.
func (p *Peer) moveToResolved(to config.Endpoint, now int64) {
	p.log().Info("endpoint resolved to another address", "peer", p.key, "endpoint_name", p.endpointName(), "endpoint", to.AddrPort)
	p.configureEndpoint(&underlay.Endpoint{Dst: to.AddrPort, Scope: to.Scope})
	if !p.running {
		return
	}
	p.renewHello(true)
	p.updateGuard()
	p.sendInitiation(now)
	p.armTimer(now)
}

// peerName returns the names of a peer. The caller holds mu.
func (p *Peer) peerName() config.PeerName {
	return config.PeerName{Name: p.nameText(), EndpointName: p.endpointName()}
}
