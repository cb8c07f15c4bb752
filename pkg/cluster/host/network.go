// SPDX-License-Identifier: Apache-2.0

package host

import (
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
)

// Network is the part of a host that mesh mode changes. One goroutine at a time uses it.
type Network interface {
	// SetRoutes makes the agent's routes lead into a tunnel, whose interface must be up. Without Cleartext it adds blackhole routes
	// with a higher metric, which apply while the tunnel is down. Besides Exempt, prefixes that the host routes to its own pods bypass
	// the tunnel. A nil Routing removes all. It returns the number of changes and leaves other programs' routes alone.
	SetRoutes(tunnel string, r *Routing) (changes int, err error)
	// SetPlaintextFilter installs the filter if wanted, else removes it. The filter drops unencrypted packets from pods whose packets
	// should have come out of the tunnel. If nodes is not nil it also drops those from other nodes to this one. It returns the number
	// of changes. After an error, such packets may pass.
	SetPlaintextFilter(tunnel string, wanted bool, nodes *NodeRouting) (changes int, err error)
	// SetInterface sets a tunnel interface's MTU, gives it an address of each pod prefix, and
	// brings it up. It removes its other /32 and /128 addresses except link-local ones. It returns
	// the number of changes.
	SetInterface(name string, mtu int, pods []netip.Prefix) (changes int, err error)
	// RemoveInterface deletes a tunnel's interface. An engine that serves it then ends. It succeeds if there is none.
	RemoveInterface(name string) error
	// LinkMTU returns the MTU of the interface that has one of the addresses, the smallest of several interfaces.
	LinkMTU(addrs []netip.Addr) (int, error)
}

// Routing is the set of prefixes that a tunnel carries. The persisted state has it as JSON.
type Routing struct {
	Routes []netip.Prefix `json:"routes,omitempty"`
	Exempt []netip.Prefix `json:"exempt,omitempty"` // parts of Routes that bypass the tunnel
	// MTU is the MTU in bytes of those Routes that need a smaller one than the tunnel's.
	MTU map[netip.Prefix]int `json:"mtu,omitempty"`
	// Sources are addresses of the host from which it sends to Routes: the first of each IP version that the host has. Without one, the
	// kernel prefers an address of the tunnel's interface.
	Sources []netip.Addr `json:"sources,omitempty"`
	// Cleartext lets packets for Routes leave unencrypted while the tunnel is down.
	Cleartext bool `json:"cleartext,omitempty"`
	// Nodes is for traffic to the addresses of other nodes; nil: the tunnel does not carry it.
	Nodes *NodeRouting `json:"nodes,omitempty"`
}

// System is the Network of the process's network namespace.
type System struct{}

// RemoveInterface implements Network.
func (System) RemoveInterface(name string) error { return tun.Remove(name) }
