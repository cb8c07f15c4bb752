// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
)

// routeCache caches the last lookup: most packets of one batch have the same destination.
type routeCache struct {
	addr    netip.Addr
	peer    *Peer
	version uint64
}

// lookup returns the peer whose allowed IPs cover addr, or nil.
func (c *routeCache) lookup(routes *peer.AllowedIPs[*Peer], addr netip.Addr) *Peer {
	version := routes.Version()
	if c.version != version || c.addr != addr {
		p, _ := routes.Lookup(addr)
		*c = routeCache{addr: addr, peer: p, version: version}
	}
	return c.peer
}
