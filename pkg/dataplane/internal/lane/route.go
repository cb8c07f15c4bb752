// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
)

// RouteCache caches the last lookup: most packets of one batch have the same destination.
type RouteCache struct {
	addr    netip.Addr
	peer    *Peer
	version uint64
}

// Lookup returns the peer whose allowed IPs cover addr, or nil.
func (c *RouteCache) Lookup(routes *peer.AllowedIPs[*Peer], addr netip.Addr) *Peer {
	version := routes.Version()
	if c.version != version || c.addr != addr {
		p, _ := routes.Lookup(addr)
		*c = RouteCache{addr: addr, peer: p, version: version}
	}
	return c.peer
}
