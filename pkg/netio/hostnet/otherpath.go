// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// OtherPath describes packets to a prefix, or to a part of it, that do not leave by the interface
// with a route to the prefix.
type OtherPath struct {
	Prefix netip.Prefix
	Part   netip.Prefix // of Prefix, to which another route or rule applies; Prefix itself if the path is for all others
	Match               // the route; Dst is invalid if the host refuses the packets
	Link   Link
	Whole  bool // such parts make up Prefix
}

func (p OtherPath) String() string {
	switch {
	case !p.Dst.IsValid():
		return fmt.Sprintf("packets to %s are refused: the host has no route to them, or its route rejects them", p.Part)
	case p.Part.Contains(p.Dst.Addr()) && p.Part.Bits() <= p.Dst.Bits(): // the route names the part
		return fmt.Sprintf("packets to %s leave by %s, on the route to %s", p.Prefix, p.Link.Name, p.Dst)
	}
	return fmt.Sprintf("packets to %s leave by %s, on the route to %s", p.Part, p.Link.Name, p.Dst)
}

// wideBits is the length from which routes beside a default route, or beside its halves, are
// legitimate, such as 10.0.0.0/8. Shorter routes replace it in parts. They belong to other VPNs,
// or to DHCP servers that want the traffic (option 121, CVE-2024-3661).
const wideBits = 8

// Replaces reports whether the path takes the whole prefix, or as much of a default route as nobody means to take.
func (p OtherPath) Replaces() bool {
	return p.Dst.IsValid() && (p.Whole || p.Part.Bits() <= p.Prefix.Bits() || p.Part.Bits() < wideBits && !isPrivate(p.Part))
}

// Diverts reports whether packets to a part of the prefix go to a gateway. Routes to networks of this host's links are legitimate, and beside a
// default route those to private networks.
func (p OtherPath) Diverts() bool {
	return p.Dst.IsValid() && p.Gateway && !p.Link.Tunnel && !p.Replaces() && (!isPrivate(p.Part) || isPrivate(p.Prefix))
}

// isPrivate reports whether a prefix has only private, only link-local or only multicast addresses, such as fc00::/7 and 224.0.0.0/4. These are
// not the Internet's, for which a default route is.
func isPrivate(p netip.Prefix) bool {
	last := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(last)*8; bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	for _, is := range []func(netip.Addr) bool{netip.Addr.IsPrivate, netip.Addr.IsLinkLocalUnicast, netip.Addr.IsMulticast} {
		if end, _ := netip.AddrFromSlice(last); is(p.Masked().Addr()) && is(end) {
			return true
		}
	}
	return false
}

// OtherPaths returns the paths of packets to prefixes that do not enter the interface with a name.
// It looks up an address of each prefix, and of each part of it that has a route or a rule of its
// own. Parts of a single address are left out: they are endpoints.
func OtherPaths(prefixes []netip.Prefix, name string) (paths []OtherPath, err error) {
	prefixes = slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool {
		// Every link has link-local and multicast addresses, and IPv6 packets to IPv4-mapped ones are looked up as IPv4.
		return p.Addr().IsLinkLocalUnicast() || p.Addr().IsMulticast() || p.Addr().Is4In6()
	})
	parts, hosts, err := partsOf(prefixes, name)
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, p := range prefixes {
		addrs = append(addrs, sample(p, parts[p], hosts))
		paths = append(paths, OtherPath{Prefix: p, Part: p})
		for _, part := range parts[p] {
			addrs = append(addrs, sample(part, nil, hosts))
			paths = append(paths, OtherPath{Prefix: p, Part: part})
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
	others, seen := paths[:0], map[OtherPath]bool{}
	for i, p := range paths {
		p.Match, p.Link = matches[i], links[matches[i].LinkIndex]
		if p.Dst.IsValid() && p.Dst.Bits() > p.Part.Bits() {
			p.Part = p.Dst
		}
		if (p.Unreachable || p.Dst.IsValid() && p.Link.Name != name) && !seen[p] {
			seen[p] = true
			others = append(others, p)
		}
	}
	setWhole(others)
	return others, nil
}

// setWhole sets Whole of the paths that together take a prefix past all tunnels.
func setWhole(paths []OtherPath) {
	taken := map[netip.Prefix][]netip.Prefix{}
	for _, p := range paths {
		if p.Dst.IsValid() && !p.Link.Tunnel && p.Part != p.Prefix {
			taken[p.Prefix] = append(taken[p.Prefix], p.Part)
		}
	}
	whole := map[netip.Prefix]bool{}
	for p, parts := range taken {
		whole[p] = tiled(p, parts)
	}
	for i := range paths {
		paths[i].Whole = whole[paths[i].Prefix] && !paths[i].Link.Tunnel
	}
}

// tiled reports whether parts make up a prefix.
func tiled(p netip.Prefix, parts []netip.Prefix) bool {
	var inside []netip.Prefix
	for _, part := range parts {
		if part.Bits() <= p.Bits() && part.Contains(p.Addr()) {
			return true
		}
		if p.Contains(part.Addr()) {
			inside = append(inside, part)
		}
	}
	if len(inside) == 0 {
		return false
	}
	low, high := halves(p)
	return tiled(low, inside) && tiled(high, inside)
}

// sample returns an address of a prefix outside its parts that is no host with a route of its own,
// if wide gaps have one. It takes the middle of a gap, as the first address of 0.0.0.0/1 is not
// routable.
func sample(p netip.Prefix, parts []netip.Prefix, hosts map[netip.Addr]bool) netip.Addr {
	const tries = 64
	queue := []netip.Prefix{p}
	for n := 0; n < len(queue) && n < tries; n++ {
		addr := middle(queue[n])
		if !hosts[addr] && !slices.ContainsFunc(parts, func(part netip.Prefix) bool { return part.Contains(addr) }) {
			return addr
		}
		if !queue[n].IsSingleIP() {
			low, high := halves(queue[n])
			queue = append(queue, low, high)
		}
	}
	return middle(p)
}

// halves returns the halves of a prefix of more than one address.
func halves(p netip.Prefix) (low, high netip.Prefix) {
	return netip.PrefixFrom(p.Masked().Addr(), p.Bits()+1), netip.PrefixFrom(middle(p), p.Bits()+1)
}

// maxParts bounds the parts that are looked up, for hosts with all routes of the Internet. The widest come first.
const maxParts = 4096

// partsOf returns for each prefix the longer destinations of routes and rules, except routes of
// the interface with a name. Single hosts are not among the parts: hosts has them.
func partsOf(prefixes []netip.Prefix, name string) (parts map[netip.Prefix][]netip.Prefix, hosts map[netip.Addr]bool, err error) {
	parts, hosts = map[netip.Prefix][]netip.Prefix{}, map[netip.Addr]bool{}
	wanted := map[netip.Prefix]bool{}
	for _, p := range prefixes {
		wanted[p] = true
	}
	if !slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return !p.IsSingleIP() }) {
		return parts, hosts, nil
	}
	all, err := destinations(name)
	if err != nil {
		return nil, nil, err
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int { return cmp.Or(cmp.Compare(a.Bits(), b.Bits()), a.Compare(b)) })
	all, left := slices.Compact(all), maxParts
	for _, dst := range all {
		if dst.IsSingleIP() {
			hosts[dst.Addr()] = true
		}
		if dst.IsSingleIP() || wanted[dst] || left == 0 {
			continue
		}
		for bits := dst.Bits() - 1; bits >= 0; bits-- {
			if wider, err := dst.Addr().Prefix(bits); err == nil && wanted[wider] {
				parts[wider], left = append(parts[wider], dst), left-1
				break
			}
		}
	}
	return parts, hosts, nil
}

// destinations returns the destinations of all rules, and of all routes except routes of the
// interface with a name.
func destinations(name string) (all []netip.Prefix, err error) {
	own, _ := FindLink(name) // there may be none
	for _, family := range Families() {
		routes, err := Dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(int(family), &netlink.Route{Type: unix.RTN_UNICAST}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
		})
		if err != nil {
			return nil, fmt.Errorf("listing %s routes: %w", family, err)
		}
		for i := range routes {
			if r := &routes[i]; r.Dst != nil && (own.Index == 0 || r.LinkIndex != own.Index) {
				all = append(all, prefixOf(r.Dst))
			}
		}
		rules, err := ListRules(family, nil, 0)
		if err != nil {
			return nil, err
		}
		for i := range rules {
			if rules[i].Dst != nil {
				all = append(all, prefixOf(rules[i].Dst))
			}
		}
	}
	return all, nil
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
