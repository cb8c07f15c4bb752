// SPDX-License-Identifier: Apache-2.0

package kube

import "net/netip"

// Network is what mesh mode changes of a host. One goroutine at a time uses it.
type Network interface {
	// SetRoutes makes the agent's routes lead into a tunnel, if that is up, and drop what is for them otherwise, if refuse. A
	// nil Routing is none at all. It returns how many it changed, and leaves those of others alone.
	SetRoutes(tunnel string, r *Routing, refuse bool) (changes int, err error)
	// SetInterface gives a tunnel's interface its MTU and the first address of each of the node's prefixes of pods, takes
	// other single addresses from it, brings it up, and returns how much of that was not so.
	SetInterface(name string, mtu int, pods []netip.Prefix) (changes int, err error)
	// RemoveInterface deletes a tunnel's interface that outlived its process. That there is none is no error.
	RemoveInterface(name string) error
	// LinkMTU returns the MTU of the interface that has one of the addresses, the smallest of several.
	LinkMTU(addrs []netip.Addr) (int, error)
}

// Routing is what goes into a tunnel.
type Routing struct {
	Routes []netip.Prefix `json:"routes,omitempty"`
	Exempt []netip.Prefix `json:"exempt,omitempty"` // parts of Routes that do not
	// MTU is of those Routes that take no packets as large as the tunnel does, in bytes.
	MTU map[netip.Prefix]int `json:"mtu,omitempty"`
}

// hostNetwork is the Network that the process is in.
type hostNetwork struct{}

func (hostNetwork) SetRoutes(tunnel string, r *Routing, refuse bool) (int, error) {
	return applyRouting(tunnel, r, refuse)
}

func (hostNetwork) SetInterface(name string, mtu int, pods []netip.Prefix) (int, error) {
	return configureInterface(name, mtu, pods)
}

func (hostNetwork) RemoveInterface(name string) error { return RemoveTunnel(name) }

func (hostNetwork) LinkMTU(addrs []netip.Addr) (int, error) { return linkMTU(addrs) }
