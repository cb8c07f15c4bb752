// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
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

// path is how datagrams to a target leave. It is immutable.
type path struct {
	reason  Reason // ViaXDP: AF_XDP with these headers; otherwise the UDP socket
	headers frameHeader
	egress  egress // the input of headers
	hop     hop    // the next hop, if resolution reached it
}

// targetPath is the present path of one target.
type targetPath struct {
	to   target
	path atomic.Pointer[path] // nil once the target was removed
	used atomic.Bool          // set by lanes, cleared by the supervisor, which so knows which neighbours to confirm
	idle int                  // reviews since it was used, for the supervisor
}

// maxTargets bounds the table. Further targets use the UDP socket.
const maxTargets = 1 << 14

// table holds the paths for all lanes. Lanes read it only when their cache has no entry.
type table struct {
	mu         sync.Mutex
	paths      map[target]*targetPath
	unresolved []*targetPath // that lanes requested and that were not resolved yet
	wake       chan struct{} // wakes the supervisor; capacity one
}

func newTable(wake chan struct{}) *table { return &table{paths: map[target]*targetPath{}, wake: wake} }

// find returns the path of a target. A new target uses the UDP socket until the supervisor has resolved its path. The
// result is nil if the table is full.
func (t *table) find(to target) *targetPath {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.paths[to]
	if r == nil && len(t.paths) < maxTargets {
		r = &targetPath{to: to}
		r.path.Store(&path{reason: Unresolved})
		r.used.Store(true)
		t.paths[to] = r
		t.unresolved = append(t.unresolved, r)
		notify(t.wake)
	}
	return r
}

// takeUnresolved returns the paths that lanes requested since the last call.
func (t *table) takeUnresolved() (asked []*targetPath) {
	t.mu.Lock()
	defer t.mu.Unlock()
	asked, t.unresolved = t.unresolved, nil
	return asked
}

// remove deletes a path. After clear, the target may have another one, which stays.
func (t *table) remove(r *targetPath) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.paths[r.to] == r {
		delete(t.paths, r.to)
	}
	r.path.Store(nil)
}

// clear deletes all targets at once.
func (t *table) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.paths {
		r.path.Store(nil)
	}
	clear(t.paths)
	t.unresolved = nil
}

// all lists the paths.
func (t *table) all() []*targetPath {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.paths))
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
	at      *targetPath
	path    *path
	tooLong bool // a datagram was too long for the path: use the UDP socket
}

func newCache(t *table, wake chan struct{}) *cache { return &cache{table: t, wake: wake} }

// find returns the cache entry of an endpoint, or nil if the table has no room for it.
func (c *cache) find(to *underlay.Endpoint) *entry {
	key := targetOf(to)
	e := &c.entries[cacheSlot(key.dst)]
	var now *path
	if e.at != nil && e.at.to == key {
		now = e.at.path.Load()
	}
	if now == nil {
		*e = entry{at: c.table.find(key)}
		if e.at == nil {
			return nil
		}
		if now = e.at.path.Load(); now == nil { // removed again
			return nil
		}
	}
	if now != e.path {
		e.path, e.tooLong = now, false
	}
	if !e.at.used.Load() {
		e.at.used.Store(true)
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
