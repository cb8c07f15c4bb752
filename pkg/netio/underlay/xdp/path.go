// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// target is the part of an endpoint that determines a path: everything but the port. It is comparable.
type target struct {
	dst   netip.Addr
	scope uint32
	src   netip.Addr // or the zero Addr
}

// targetOf returns the target of an endpoint. A source of the other address family counts as no source.
func targetOf(e *underlay.Endpoint) target {
	t := target{dst: e.Dst.Addr(), scope: e.Scope}
	if e.Src.Is4() == t.dst.Is4() {
		t.src = e.Src
	}
	return t
}

// path is how datagrams to a target leave. It is immutable, apart from used; a changed path replaces it.
type path struct {
	reason  Reason // ViaXDP: AF_XDP with these headers; otherwise the UDP socket
	headers frameHeader
	egress  egress // the input of headers
	hop     hop    // the next hop, if resolution reached it
	// used is set by lanes and cleared by the supervisor. It tells the supervisor which neighbours to confirm.
	used atomic.Bool
}

// maxTargets bounds the table. Further targets use the UDP socket.
const maxTargets = 1 << 14

// table holds the paths of all lanes. Lanes read it only when their cache has no entry.
type table struct {
	generation atomic.Uint64 // incremented after paths change; invalidates the caches

	mu         sync.Mutex
	paths      map[target]*path
	unresolved []target      // targets that lanes requested and that have no path yet
	stale      bool          // caches may hold other paths than these
	era        int           // incremented when all paths become void
	wake       chan struct{} // wakes the supervisor; capacity one
}

func newTable(wake chan struct{}) *table { return &table{paths: map[target]*path{}, wake: wake} }

// find returns the path of a target. A new target uses the UDP socket until the supervisor has resolved its path. The
// result is nil if the table is full.
func (t *table) find(to target) *path {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.paths[to]
	if p == nil && len(t.paths) < maxTargets {
		p = &path{reason: Unresolved}
		p.used.Store(true)
		t.paths[to] = p
		t.unresolved = append(t.unresolved, to)
		notify(t.wake)
	}
	return p
}

// takeUnresolved returns the targets that lanes requested since the last call, and the era in which results are valid.
func (t *table) takeUnresolved() (asked []target, era int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	asked, t.unresolved = t.unresolved, nil
	return asked, t.era
}

// put replaces a path that was resolved in an era, unless the era is over or the target was removed. flush makes it
// visible.
func (t *table) put(to target, p *path, era int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.paths[to]; old != nil && era == t.era {
		p.used.Store(old.used.Load())
		t.paths[to] = p
		t.stale = true
	}
}

// remove deletes a target. flush makes it visible.
func (t *table) remove(to target) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.paths, to)
	t.stale = true
}

// clear deletes all paths at once and begins a new era.
func (t *table) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.paths)
	t.unresolved = nil
	t.era++
	t.stale = true
	t.flushLocked()
}

// flush invalidates the lanes' caches if anything has changed.
func (t *table) flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flushLocked()
}

// flushLocked is flush. The caller holds mu.
func (t *table) flushLocked() {
	if t.stale {
		t.stale = false
		t.generation.Add(1)
	}
}

// get returns the path of a target, or nil.
func (t *table) get(to target) *path {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.paths[to]
}

// targets lists the targets in the table.
func (t *table) targets() []target {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]target, 0, len(t.paths))
	for to := range t.paths {
		list = append(list, to)
	}
	return list
}

// notify puts a token into a channel of capacity one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// cacheSize is the number of targets that a lane caches. The cache is direct-mapped.
const cacheSize = 256

// cache is a lane's own cache of paths.
type cache struct {
	table   *table
	wake    chan struct{}
	entries [cacheSize]entry
}

type entry struct {
	to         target
	path       *path
	generation uint64
	tooLong    bool // a datagram was too long for the path: use the UDP socket
}

func newCache(t *table, wake chan struct{}) *cache { return &cache{table: t, wake: wake} }

// find returns the cache entry of an endpoint, or nil if the table is full.
func (c *cache) find(to *underlay.Endpoint) *entry {
	key := targetOf(to)
	e := &c.entries[cacheSlot(key.dst)]
	generation := c.table.generation.Load()
	if e.generation != generation || e.path == nil || e.to != key {
		p := c.table.find(key)
		if p == nil {
			return nil
		}
		if p != e.path || e.to != key {
			*e = entry{to: key, path: p}
		}
		e.generation = generation
	}
	if !e.path.used.Load() {
		e.path.used.Store(true)
		notify(c.wake)
	}
	return e
}

// cacheSlot returns the cache index of an address.
func cacheSlot(a netip.Addr) int {
	b := a.As16()
	h := (binary.LittleEndian.Uint64(b[:]) ^ binary.LittleEndian.Uint64(b[8:])) * 0x9e3779b97f4a7c15
	return int(h >> 56)
}
