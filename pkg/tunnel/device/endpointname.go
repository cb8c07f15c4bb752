// SPDX-License-Identifier: Apache-2.0

package device

import (
	"container/list"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/endpoint"
)

// Resolved is the result of a lookup of an endpoint's name.
type Resolved = endpoint.Resolved

const (
	lookupTimeout = 10 * time.Second
	// maxLookups is the maximum number of concurrent lookups. Each takes at least lookupInterval: a thousand peers may fail at once.
	maxLookups     = 8
	lookupInterval = 100 * time.Millisecond
)

// lookups are the lookups of endpoints' names, in the order in which they were requested. Goroutines exist only while lookups wait or run.
// The lock comes after Peer.mu.
type lookups struct {
	dev     *Device
	mu      sync.Mutex
	waiting list.List // of lookup
	running int       // goroutines
}

// lookup is one lookup. Each peer has one at most (endpoint.Name.Request).
type lookup struct {
	peer *Peer
	name string
	mark uint32
}

// lookUpName looks the endpoint's name up again if its addresses are old, or sooner if handshakes fail. The caller holds mu.
func (l *location) lookUpName(now int64) {
	p, failing, mark := l.peer, l.peer.handshake.fails(), uint32(0)
	if p.dev.cfg.Resolve == nil || !l.name.Request(now, failing) {
		return
	}
	if failing { // the mark keeps the query out of this tunnel, which may be the default route
		mark = p.dev.mark.Load()
	}
	p.dev.lookups.request(lookup{p, l.name.String(), mark})
}

// request appends a lookup, and starts a goroutine for it unless maxLookups of them run.
func (q *lookups) request(l lookup) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting.PushBack(l)
	if q.running < maxLookups {
		q.running++
		q.dev.workers.Go(q.run)
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

// run makes one lookup per lookupInterval, until none waits.
func (q *lookups) run() {
	for l, ok := q.next(); ok; l, ok = q.next() {
		pause := time.NewTimer(lookupInterval)
		l.peer.location.resolve(l.name, l.mark)
		select {
		case <-pause.C:
		case <-q.dev.stop:
			pause.Stop()
			return
		}
	}
}

// resolve looks the name up, unless the endpoint has another one or the peer was removed meanwhile.
func (l *location) resolve(name string, mark uint32) {
	p := l.peer
	d := p.dev
	p.mu.Lock()
	unused := !p.running || l.name.String() != name
	if unused {
		l.name.Cancel()
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
	if l.name.String() == name {
		l.noteLookup(r, err, d.clock())
	}
}

// noteLookup applies the result of a lookup. The caller holds mu.
func (l *location) noteLookup(r Resolved, err error, now int64) {
	p := l.peer
	if err != nil || len(r.Endpoints) == 0 {
		l.name.Fail(now)
		level := slog.LevelWarn
		if !p.dev.failuresLog.Allow(now, time.Minute) {
			level = slog.LevelDebug
		}
		p.log().Log(context.Background(), level, "resolving the endpoint name failed, keeping the present address: a later handshake retries",
			"peer", p.key, "endpoint_name", l.name.String(), "error", err)
		return
	}
	if to, move := l.name.Note(r, p.engine.Endpoint.Load(), p.handshake.fails(), now); move {
		l.moveToResolved(to, now)
	}
}

// moveToResolved sets another address of the endpoint's name, and starts a handshake there. The caller holds mu.
func (l *location) moveToResolved(to config.Endpoint, now int64) {
	p := l.peer
	p.log().Info("endpoint resolved to another address", "peer", p.key, "endpoint_name", l.name.String(), "endpoint", to.AddrPort)
	l.configure(&underlay.Endpoint{Dst: to.AddrPort, Scope: to.Scope})
	if !p.running {
		return
	}
	p.hello.renew(true)
	l.updateGuard()
	p.handshake.sendInitiation(now)
	p.armTimer(now)
}
