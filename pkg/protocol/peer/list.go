// SPDX-License-Identifier: Apache-2.0

package peer

import "net/netip"

// prefixList is an owner's prefixes in the order in which they were added. It is a linked list, as
// some owners have thousands, and any may be removed at any time.
type prefixList struct{ first, last *prefixNode }

// prefixNode is an element of a prefixList.
type prefixNode struct {
	prefix     netip.Prefix
	prev, next *prefixNode
}

func (l *prefixList) append(prefix netip.Prefix) *prefixNode {
	at := &prefixNode{prefix: prefix, prev: l.last}
	if l.last == nil {
		l.first = at
	} else {
		l.last.next = at
	}
	l.last = at
	return at
}

func (l *prefixList) remove(at *prefixNode) {
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
