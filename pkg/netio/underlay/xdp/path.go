// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// target is what a way depends on: an endpoint without its port. It is comparable.
type target struct {
	dst   netip.Addr
	scope uint32
	src   netip.Addr // or the zero Addr
}

// targetOf leaves out a source of the other family, which is none.
func targetOf(e *underlay.Endpoint) target {
	t := target{dst: e.Dst.Addr(), scope: e.Scope}
	if e.Src.Is4() == t.dst.Is4() {
		t.src = e.Src
	}
	return t
}

// path says how datagrams for a target leave. It does not change; another one takes its place.
type path struct {
	reason  Reason // ViaXDP: by AF_XDP, with the headers; else by the UDP socket
	headers frameHeader
	egress  egress // what the headers were made from
	hop     hop    // whose link-layer address that took, if it came so far
	// used is set by lanes and cleared by the keeper, so that it knows which neighbours to keep fresh.
	used atomic.Bool
}

// maxTargets bounds the table: what more there is goes by the UDP socket.
const maxTargets = 1 << 14

// table has the paths of all lanes. Lanes look into it only when their cache has nothing.
type table struct {
	generation atomic.Uint64 // changes after paths do, so that caches forget what they know

	mu         sync.Mutex
	paths      map[target]*path
	unresolved []target      // what lanes found missing
	stale      bool          // lanes may remember other paths than these
	epoch      int           // changes when all that is known is void
	wake       chan struct{} // tells the keeper, with room for one
}

func newTable(wake chan struct{}) *table { return &table{paths: map[target]*path{}, wake: wake} }

// find returns the path for a target. One that is unknown goes by the UDP socket until the keeper has found out. With no
// room it is nil.
func (t *table) find(to target) *path {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.paths[to]
	if p == nil && len(t.paths) < maxTargets {
		p = &path{reason: Unresolved}
		p.used.Store(true)
		t.paths[to] = p
		t.unresolved = append(t.unresolved, to)
		ring(t.wake)
	}
	return p
}

// takeUnresolved returns what lanes asked for since the last call, and in which era answers are good.
func (t *table) takeUnresolved() (asked []target, era int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	asked, t.unresolved = t.unresolved, nil
	return asked, t.epoch
}

// put replaces a path that was found out in an era, unless that is over or the path was removed. It takes effect with flush.
func (t *table) put(to target, p *path, era int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.paths[to]; old != nil && era == t.epoch {
		p.used.Store(old.used.Load())
		t.paths[to] = p
		t.stale = true
	}
}

// remove forgets a target. It takes effect with flush.
func (t *table) remove(to target) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.paths, to)
	t.stale = true
}

// clear makes all paths unknown, at once, and begins an era.
func (t *table) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.paths)
	t.unresolved = nil
	t.epoch++
	t.stale = true
	t.renew()
}

// flush makes lanes look again, if anything has changed.
func (t *table) flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.renew()
}

// renew is flush for who holds mu.
func (t *table) renew() {
	if t.stale {
		t.stale = false
		t.generation.Add(1)
	}
}

// get returns the path of a target that is known, else nil.
func (t *table) get(to target) *path {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.paths[to]
}

// targets lists what is known.
func (t *table) targets() []target {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]target, 0, len(t.paths))
	for to := range t.paths {
		list = append(list, to)
	}
	return list
}

// reasons counts the targets by the reason why they go by the UDP socket, Express for those that do not.
func (t *table) reasons() (count [reasons]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.paths {
		count[p.reason]++
	}
	return count
}

// ring leaves a token in a channel that has room for one.
func ring(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// cacheSize is how many targets a lane remembers, each in its one place.
const cacheSize = 256

// cache is a lane's own memory of paths.
type cache struct {
	table   *table
	wake    chan struct{}
	entries [cacheSize]entry
}

type entry struct {
	to         target
	path       *path
	generation uint64
	detour     bool // something was too long for it
}

func newCache(t *table, wake chan struct{}) *cache { return &cache{table: t, wake: wake} }

// find returns where datagrams for an endpoint go, nil if nothing is known.
func (c *cache) find(to *underlay.Endpoint) *entry {
	key := targetOf(to)
	e := &c.entries[place(key.dst)]
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
		ring(c.wake)
	}
	return e
}

// place is where in a cache an address belongs.
func place(a netip.Addr) int {
	b := a.As16()
	h := (binary.LittleEndian.Uint64(b[:]) ^ binary.LittleEndian.Uint64(b[8:])) * 0x9e3779b97f4a7c15
	return int(h >> 56)
}
