// SPDX-License-Identifier: Apache-2.0

package peer

import "net/netip"

// list is an owner's prefixes in the order in which they were added: most have one or two, and some thousands, of which
// any may go at any time.
type list struct{ first, last *place }

// place is one prefix's place in a list.
type place struct {
	prefix     netip.Prefix
	prev, next *place
}

func (l *list) append(prefix netip.Prefix) *place {
	at := &place{prefix: prefix, prev: l.last}
	if l.last == nil {
		l.first = at
	} else {
		l.last.next = at
	}
	l.last = at
	return at
}

func (l *list) remove(at *place) {
	if at.prev == nil {
		l.first = at.next
	} else {
		at.prev.next = at.next
	}
	if at.next == nil {
		l.last = at.prev
	} else {
		at.next.prev = at.prev
	}
}
