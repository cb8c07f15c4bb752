// SPDX-License-Identifier: Apache-2.0

// Package hostnet changes and reads the host's network configuration over netlink: links, addresses, routes and policy
// rules. Every function works in the network namespace of the calling thread (a caller that has entered another one
// must have locked its goroutine to the thread), keeps no state and may be called concurrently. Errors wrap the
// kernel's errno.
package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Family is an IP version.
type Family int

const (
	IPv4 Family = unix.AF_INET
	IPv6 Family = unix.AF_INET6
)

// Families are both, in the order in which people name them.
func Families() []Family { return []Family{IPv4, IPv6} }

// FamilyOf returns the family of an address; a 4-in-6 address is IPv6.
func FamilyOf(addr netip.Addr) Family {
	if addr.Is4() {
		return IPv4
	}
	return IPv6
}

// String is "IPv4" or "IPv6".
func (f Family) String() string {
	if f == IPv4 {
		return "IPv4"
	}
	return "IPv6"
}

// dumpTries bounds how often one listing is repeated. Each retry needs a change by someone else during the dump.
const dumpTries = 64

// Dump repeats a listing until it is consistent: the kernel flags one during which the tables changed
// (NLM_F_DUMP_INTR, netlink.ErrDumpInterrupted), and such a listing may lack entries.
func Dump[T any](list func() (T, error)) (T, error) {
	var v T
	var err error
	for range dumpTries {
		v, err = list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return v, err
		}
	}
	return v, fmt.Errorf("listing changed %d times while it was read: %w", dumpTries, err)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// prefixOf converts what the kernel reported. IPv4 in 16 bytes becomes 4 bytes; nil becomes the zero Prefix.
func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if !ok || bits == 0 {
		return netip.Prefix{}
	}
	if bits == 32 {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, ones)
}
