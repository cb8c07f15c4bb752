// SPDX-License-Identifier: Apache-2.0

package underlay

import "net/netip"

// Guard is a Port that can keep strangers out where that is cheapest, before the kernel's network stack. It does its best with
// what it is told: what it has no room for is let in. Its methods may be called by any goroutine, and cost a system call at most.
type Guard interface {
	// AddIndex makes a receiver index known, before any peer can learn it. Once the Port is guarded, data messages to
	// an index that is not known are dropped (drop.RXUnknownIndex). RemoveIndex undoes it.
	AddIndex(index uint32)
	RemoveIndex(index uint32)
	// AddSource says that a peer is at an address; strangers' handshakes then cannot use up what is let in from there. Peers may
	// share one: each addition is undone by one RemoveSource.
	AddSource(address netip.Addr)
	RemoveSource(address netip.Addr)
	// SetGuarded is called when all indices are known that peers may know: nothing is kept out before.
	SetGuarded()
}
