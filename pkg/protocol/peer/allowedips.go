// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/gaissmai/bart"
)

// AllowedIPs maps inner addresses to owners (cryptokey routing; WireGuard paper, §2). A prefix has one owner, and an
// address belongs to the owner of the longest matching prefix. Lookup takes no lock and sees each Update as a whole
// or not at all. The zero AllowedIPs is empty and ready.
//
// A small Update copies the paths that it changes and shares the rest of the table. An Update that changes much
// copies the whole table once. Each owner has its own list of prefixes, so the cost of removing an owner does not
// depend on the number of prefixes of others.
type AllowedIPs[T comparable] struct {
	table atomic.Pointer[bart.Fast[route[T]]]

	version atomic.Uint64

	mu     sync.Mutex
	owners map[T]prefixList
}

// route is a value of the table. It has no methods: bart would clone values with a Clone method, which T may have.
type route[T comparable] struct {
	owner T
	node  *prefixNode // in the owner's list, guarded by mu
}

// Lookup returns the owner of addr. It allocates nothing and may run concurrently with all other methods. An address
// of the form ::ffff:a.b.c.d is treated as IPv6.
func (a *AllowedIPs[T]) Lookup(addr netip.Addr) (owner T, ok bool) {
	table := a.table.Load()
	if table == nil {
		return owner, false
	}
	r, ok := table.Lookup(addr)
	return r.owner, ok
}

// Prefixes returns the owner's prefixes in the order in which they were added.
func (a *AllowedIPs[T]) Prefixes(owner T) []netip.Prefix {
	a.mu.Lock()
	defer a.mu.Unlock()
	var prefixes []netip.Prefix
	for at := a.owners[owner].first; at != nil; at = at.next {
		prefixes = append(prefixes, at.prefix)
	}
	return prefixes
}

// Len is the number of prefixes of all owners.
func (a *AllowedIPs[T]) Len() int {
	table := a.table.Load()
	if table == nil {
		return 0
	}
	return table.Size()
}

// Update calls edit, which may make any number of changes, and then publishes them at once. Updates exclude each
// other. edit must not call methods of the AllowedIPs or keep the Editor.
func (a *AllowedIPs[T]) Update(edit func(e *Editor[T])) {
	a.mu.Lock()
	defer a.mu.Unlock()
	table := a.table.Load()
	if table == nil {
		table = new(bart.Fast[route[T]])
		a.owners = map[T]prefixList{}
	}
	e := Editor[T]{ips: a, table: table}
	edit(&e)
	a.table.Store(e.table)
	a.version.Add(1)
}

// Version changes after each Update is visible: a lookup made after Version returned v is valid while Version returns
// v.
func (a *AllowedIPs[T]) Version() uint64 { return a.version.Load() }

// Editor makes the changes of one Update. It zeroes the bits of a prefix beyond its length.
type Editor[T comparable] struct {
	ips   *AllowedIPs[T]
	table *bart.Fast[route[T]]

	changes int
	cloned  bool // the table shares nothing with the published one and may be changed in place
}

// copyRatio is the number of prefixes whose copying takes about as long as copying one path: 29 µs against 72 ns for
// each of 8192 prefixes. It is half of the measured value, because the paths of a small table are short.
const copyRatio = 200

// Add assigns prefix to owner, and removes it from its previous owner. A prefix that owner already has keeps its
// position in the list. Add returns false, and does nothing, if prefix is invalid.
func (e *Editor[T]) Add(prefix netip.Prefix, owner T) bool {
	if !prefix.IsValid() {
		return false
	}
	prefix = prefix.Masked()
	if previous, ok := e.table.Get(prefix); ok {
		if previous.owner == owner {
			return true
		}
		e.unlist(previous)
	}
	e.insert(prefix, route[T]{owner, e.list(prefix, owner)})
	return true
}

// Remove removes prefix from owner, and reports whether owner had it.
func (e *Editor[T]) Remove(prefix netip.Prefix, owner T) bool {
	if !prefix.IsValid() {
		return false
	}
	prefix = prefix.Masked()
	found, ok := e.table.Get(prefix)
	if !ok || found.owner != owner {
		return false
	}
	e.delete(prefix)
	e.unlist(found)
	return true
}

// RemoveOwner removes all prefixes of owner.
func (e *Editor[T]) RemoveOwner(owner T) {
	for at := e.ips.owners[owner].first; at != nil; at = at.next {
		e.delete(at.prefix)
	}
	delete(e.ips.owners, owner)
}

func (e *Editor[T]) insert(prefix netip.Prefix, r route[T]) {
	if e.inPlace() {
		e.table.Insert(prefix, r)
	} else {
		e.table = e.table.InsertPersist(prefix, r)
	}
}

func (e *Editor[T]) delete(prefix netip.Prefix) {
	if e.inPlace() {
		e.table.Delete(prefix)
	} else {
		e.table = e.table.DeletePersist(prefix)
	}
}

// inPlace counts a change and reports whether to make it in place. It clones the table after enough path copies.
func (e *Editor[T]) inPlace() bool {
	e.changes++
	if !e.cloned && e.changes*copyRatio >= e.table.Size() {
		e.table, e.cloned = e.table.Clone(), true
	}
	return e.cloned
}

func (e *Editor[T]) list(prefix netip.Prefix, owner T) *prefixNode {
	prefixes := e.ips.owners[owner]
	at := prefixes.append(prefix)
	e.ips.owners[owner] = prefixes
	return at
}

func (e *Editor[T]) unlist(r route[T]) {
	prefixes := e.ips.owners[r.owner]
	prefixes.remove(r.node)
	if prefixes.first == nil {
		delete(e.ips.owners, r.owner)
	} else {
		e.ips.owners[r.owner] = prefixes
	}
}
