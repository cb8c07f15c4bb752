// SPDX-License-Identifier: Apache-2.0

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

// Families returns both families, IPv4 first.
func Families() []Family { return []Family{IPv4, IPv6} }

// FamilyOf returns the family of an address; a 4-in-6 address is IPv6.
func FamilyOf(addr netip.Addr) Family {
	if addr.Is4() {
		return IPv4
	}
	return IPv6
}

// String returns "IPv4" or "IPv6".
func (f Family) String() string {
	if f == IPv4 {
		return "IPv4"
	}
	return "IPv6"
}

// dumpAttempts bounds the attempts at one listing. Each retry needs a concurrent change during the dump.
const dumpAttempts = 64

// Dump repeats a listing until it is consistent. The kernel flags a dump during which the tables changed
// (NLM_F_DUMP_INTR, netlink.ErrDumpInterrupted); such a listing may lack entries.
func Dump[T any](list func() (T, error)) (T, error) {
	var v T
	var err error
	for range dumpAttempts {
		v, err = list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return v, err
		}
	}
	return v, fmt.Errorf("netlink dump interrupted %d times: %w", dumpAttempts, err)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// prefixOf converts a prefix from the kernel. IPv4 in 16 bytes becomes 4 bytes; nil becomes the zero Prefix.
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
