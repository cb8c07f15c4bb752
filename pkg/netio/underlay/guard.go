// SPDX-License-Identifier: Apache-2.0

package underlay

import "github.com/ropewalk/ropewalk/pkg/protocol/config"

// Guard drops unknown senders' packets where that is cheapest, before the kernel's network stack. It
// works on a best-effort basis: it admits packets for entries that did not fit its tables. Any goroutine may call its
// methods. Each costs one system call at most.
type Guard interface {
	// AddIndex registers a receiver index, before any peer can learn it. Data messages from a
	// registered endpoint to an unknown index are dropped (drop.RXUnknownIndex). RemoveIndex undoes it.
	AddIndex(index uint32)
	RemoveIndex(index uint32)
	// AddSource registers a peer's endpoint. Handshakes of unknown senders then cannot use up the rate limit of its
	// address. Peers may share an endpoint: one RemoveSource undoes one AddSource.
	AddSource(endpoint config.Endpoint)
	RemoveSource(endpoint config.Endpoint)
}

// Peers answers the questions that a Switcher may ask of the peers. The caller holds no lock with
// which a method of the Switcher is called.
type Peers interface {
	// Guard registers all indices and endpoints with g, and then all changes until the next call. With nil it only ends that.
	Guard(g Guard)
	// Endpoints returns the endpoints of some peers, at most limit.
	Endpoints(limit int) []config.Endpoint
}
