// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"fmt"
	"net/netip"
	"slices"
)

// OtherPath is where packets to an address of a prefix leave, if not by the interface that has a route to the prefix.
type OtherPath struct {
	Prefix, Route netip.Prefix
	Link          Link
	Metric        int // of Route
}

func (p OtherPath) String() string {
	return fmt.Sprintf("packets to %s leave by %s, on the route to %s", p.Prefix, p.Link.Name, p.Route)
}

// wideBits is the length from which routes beside a default route into the tunnel are legitimate, such as 10.0.0.0/8. Shorter ones replace it
// in parts: those of other VPNs, and of DHCP servers that want the traffic (option 121, CVE-2024-3661).
const wideBits = 8

// IsWide reports whether a part of a default route leaves by another one.
func (p OtherPath) IsWide() bool {
	return p.Prefix.Bits() == 0 && p.Route.Bits() > 0 && p.Route.Bits() < wideBits
}

// WidePaths returns the wide ones of OtherPaths, each once.
func WidePaths(prefixes []netip.Prefix, name string) (paths []OtherPath, err error) {
	all, err := OtherPaths(slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool { return p.Bits() > 0 }), name)
	for _, p := range all {
		if p.IsWide() && !slices.Contains(paths, p) {
			paths = append(paths, p)
		}
	}
	return paths, err
}

// OtherPaths returns the paths of packets to prefixes that do not enter the interface with a name.
func OtherPaths(prefixes []netip.Prefix, name string) (paths []OtherPath, err error) {
	if len(prefixes) == 0 {
		return nil, nil
	}
	var addrs []netip.Addr
	var of []netip.Prefix
	for _, p := range prefixes {
		for _, a := range samples(p) {
			addrs, of = append(addrs, a), append(of, p)
		}
	}
	matches, err := MatchRoutes(addrs)
	if err != nil {
		return nil, err
	}
	links, err := linksByIndex()
	if err != nil {
		return nil, err
	}
	for i, m := range matches {
		if link := links[m.Link]; m.Dst.IsValid() && link.Name != name {
			paths = append(paths, OtherPath{of[i], m.Dst, link, m.Metric})
		}
	}
	return paths, nil
}

// samples returns the addresses of a prefix that are looked up: the one in the middle, as the first one of 0.0.0.0/1 is not routable. Of a
// default route they are also those in the middle of the longest wide prefixes of unicast addresses.
func samples(p netip.Prefix) (addrs []netip.Addr) {
	addrs = append(addrs, middle(p))
	first, end := 0x20, 0x40 // 2000::/3
	if p.Addr().Is4() {
		first, end = 0, 224
	}
	for b := first; p.Bits() == 0 && b < end; b += 1 << (8 - (wideBits - 1)) {
		part := p.Addr().AsSlice()
		part[0] = byte(b)
		addr, _ := netip.AddrFromSlice(part)
		addrs = append(addrs, middle(netip.PrefixFrom(addr, wideBits-1)))
	}
	return addrs
}

func linksByIndex() (map[int]Link, error) {
	all, err := Links()
	links := map[int]Link{}
	for _, l := range all {
		links[l.Index] = l
	}
	return links, err
}

// middle returns the address in the middle of a prefix.
func middle(p netip.Prefix) netip.Addr {
	if p.IsSingleIP() {
		return p.Addr()
	}
	b := p.Masked().Addr().AsSlice()
	b[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	addr, _ := netip.AddrFromSlice(b)
	return addr
}
