// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
)

// resolver looks up how the kernel would send, in the network namespace of its thread. It ignores packet filters
// (netfilter, tc) and IPsec policies: frames sent through AF_XDP bypass them.
type resolver struct {
	nl               *netlink.Handle
	device           int // index of the device with the queues, 0 for none
	maxPacket        int // longest IP packet in bytes that a frame holds
	mark             uint32
	dontFragment     bool // packets have Don't Fragment set
	unsupportedRules bool // some rule depends on a field that the lookup does not have
}

func newResolver(frameSize int) (*resolver, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	return &resolver{nl: h, maxPacket: maxIPPacket(frameSize)}, nil
}

// maxIPPacket returns the length of the longest IP packet that a frame of that Binding.FrameSize holds.
func maxIPPacket(frameSize int) int {
	if frameSize == 0 {
		frameSize = xsk.DefaultFrameSize
	}
	return frameSize - xsk.TxHeadroom - ethernetLen - vlanLen
}

// begin prepares for a series of lookups.
func (r *resolver) begin(mark uint32, dontFragment bool) {
	r.mark, r.dontFragment, r.unsupportedRules = mark, dontFragment, false
	for _, family := range hostnet.Families() {
		rules, err := hostnet.ListRules(family, nil, 0)
		r.unsupportedRules = r.unsupportedRules || err == nil && hasUnsupportedRules(rules) // a kernel without CONFIG_IP_MULTIPLE_TABLES has no rules
	}
}

// hasUnsupportedRules reports whether one of the rules depends on ports, protocol or user.
func hasUnsupportedRules(rules []netlink.Rule) bool {
	for i := range rules {
		if r := &rules[i]; r.Dport != nil || r.Sport != nil || r.IPProto != 0 || r.UIDRange != nil {
			return true
		}
	}
	return false
}

// resolve returns the path to a target.
func (r *resolver) resolve(to target) *path {
	p := &path{}
	if p.reason = r.find(to, p); p.reason == ViaXDP {
		p.headers = newFrameHeader(&p.egress)
	}
	return p
}

// find fills in egress and hop.
func (r *resolver) find(to target, p *path) Reason {
	switch {
	case r.device == 0:
		return OtherDevice
	case r.unsupportedRules:
		return UnsupportedRules
	case to.src.IsValid() && !r.isLocal(to.src, to.scope):
		return NoSource
	}
	route, reason := r.route(to)
	if reason != ViaXDP {
		return reason
	}
	if reason := r.fillLink(route, &p.egress); reason != ViaXDP {
		return reason
	}
	if reason := fillAddresses(to, route, &p.egress); reason != ViaXDP {
		return reason
	}
	p.egress.hops = hopLimit(route, to.dst, p.egress.device)
	if n := hostnet.IPv6MTU(p.egress.device); to.dst.Is6() && n > 0 {
		p.egress.mtu = min(p.egress.mtu, n)
	}
	p.hop = hopOf(route, to.dst)
	n, err := getNeighbour(p.hop)
	switch {
	case err != nil:
		return Failed
	case !n.known():
		return NoNeighbour
	}
	p.egress.to = n.addr
	return ViaXDP
}

func (r *resolver) isLocal(a netip.Addr, scope uint32) bool {
	routes, err := r.nl.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{OifIndex: oif(a, scope)})
	return err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL
}

// oif returns the index of the interface on which a link-local address is valid, or 0.
func oif(a netip.Addr, scope uint32) int {
	if isScoped(a) {
		return int(scope)
	}
	return 0
}

// route looks up the route to a target on another host.
func (r *resolver) route(to target) (*netlink.Route, Reason) {
	o := &netlink.RouteGetOptions{Mark: r.mark, OifIndex: int(to.scope)}
	if to.src.IsValid() {
		o.SrcAddr = to.src.AsSlice()
	}
	routes, err := r.nl.RouteGetWithOptions(to.dst.AsSlice(), o)
	var refused unix.Errno
	switch {
	case errors.As(err, &refused):
		return nil, NoRoute
	case err != nil:
		return nil, Failed
	case len(routes) != 1 || routes[0].Type != unix.RTN_UNICAST:
		return nil, NoRoute
	case routes[0].Encap != nil || routes[0].NewDst != nil || r.dependsOnPorts(to, o):
		return nil, UnsupportedRoute
	}
	return &routes[0], ViaXDP
}

// dependsOnPorts reports whether the kernel chooses among several next hops by a hash that may include ports (fib_multipath_hash_policy). A
// lookup returns the one without ports. In doubt it reports true.
func (r *resolver) dependsOnPorts(to target, o *netlink.RouteGetOptions) bool {
	if hostnet.Sysctl(strings.ToLower(hostnet.FamilyOf(to.dst).String())+"/fib_multipath_hash_policy") == 0 {
		return false
	}
	o.FIBMatch = true
	matched, err := r.nl.RouteGetWithOptions(to.dst.AsSlice(), o)
	return err != nil || len(matched) != 1 || len(matched[0].MultiPath) > 0
}

// fillLink fills in the fields of the egress that depend on the route's device.
func (r *resolver) fillLink(route *netlink.Route, e *egress) Reason {
	link, err := r.nl.LinkByIndex(route.LinkIndex)
	if err != nil {
		return Failed
	}
	a := link.Attrs()
	if a.EncapType != "ether" || len(a.HardwareAddr) != len(mac{}) || a.Flags&net.FlagUp == 0 {
		return OtherDevice
	}
	if a.Index != r.device {
		v, ok := link.(*netlink.Vlan)
		if !ok || a.ParentIndex != r.device || a.NetNsID != -1 || v.VlanProtocol != netlink.VLAN_PROTOCOL_8021Q {
			return OtherDevice
		}
		e.tagged, e.vlan = true, uint16(v.VlanId)
	}
	e.device = a.Name
	e.from = mac(a.HardwareAddr)
	e.mtu = min(a.MTU, r.maxPacket)
	if route.MTU > 0 && !r.dontFragment { // with it, UDP sockets also ignore the MTU: anybody can make the kernel learn one (RFC 8899, section 4.6)
		e.mtu = min(e.mtu, route.MTU)
	}
	return ViaXDP
}

// fillAddresses fills in source and destination address.
func fillAddresses(to target, route *netlink.Route, e *egress) Reason {
	e.src, e.dst = to.src, to.dst
	if !e.src.IsValid() {
		e.src, _ = netip.AddrFromSlice(route.Src)
		if to.dst.Is4() {
			e.src = e.src.Unmap()
		}
	}
	if !e.src.IsValid() || e.src.Is4() != e.dst.Is4() || e.src.IsUnspecified() {
		return NoSource
	}
	return ViaXDP
}

// hopOf returns the next hop: the route's gateway, of either address family, or the destination.
func hopOf(route *netlink.Route, dst netip.Addr) hop {
	h := hop{device: route.LinkIndex, addr: dst}
	gateway := route.Gw
	if via, ok := route.Via.(*netlink.Via); ok {
		gateway = via.Addr
	}
	if a, ok := netip.AddrFromSlice(gateway); ok {
		h.addr = a
		if len(gateway) == net.IPv4len || dst.Is4() {
			h.addr = a.Unmap()
		}
	}
	return h
}

// defaultHops is the default TTL (RFC 1700).
const defaultHops = 64

// hopLimit returns the route's hop limit, or the host's default for the device.
func hopLimit(route *netlink.Route, dst netip.Addr, device string) uint8 {
	n := route.Hoplimit
	if n == 0 && dst.Is6() {
		n = hostnet.Sysctl("ipv6/conf/" + device + "/hop_limit")
	} else if n == 0 {
		n = hostnet.Sysctl("ipv4/ip_default_ttl")
	}
	if n <= 0 || n > 255 {
		return defaultHops
	}
	return uint8(n)
}

// getNeighbour looks up a neighbour. It returns the zero neighbour if the kernel has no entry. (RTM_GETNEIGH for a
// single neighbour needs Linux 5.0.)
func getNeighbour(h hop) (neighbour, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	request.AddData(&netlink.Ndmsg{Family: uint8(hostnet.FamilyOf(h.addr)), Index: uint32(h.device)})
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, h.addr.AsSlice()))
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	switch {
	case errors.Is(err, unix.ENOENT):
		return neighbour{}, nil
	case err != nil:
		return neighbour{}, fmt.Errorf("looking up the neighbour %s: %w", h.addr, err)
	}
	for _, m := range messages {
		if got, n, ok := parseNeighbour(m); ok && got == h {
			return n, nil
		}
	}
	return neighbour{}, nil
}

// confirm makes the kernel verify a stale neighbour, as if it had a packet to send (NTF_USE). It does not see the
// packets that AF_XDP sends.
func (r *resolver) confirm(h hop) {
	n, err := getNeighbour(h)
	if err != nil || n.state&netlink.NUD_STALE == 0 {
		return
	}
	// If this fails, the path is resolved again when the neighbour has become unusable.
	_ = r.nl.NeighSet(&netlink.Neigh{
		LinkIndex: h.device, Family: int(hostnet.FamilyOf(h.addr)), Flags: netlink.NTF_USE, IP: h.addr.AsSlice(),
	})
}

// isScoped reports whether an address is an IPv6 link-local address, which is valid on one link only.
func isScoped(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

// isStacked reports whether one of all devices is stacked on top of link, VLANs above all, or link is part of another device.
func isStacked(link netlink.Link, all []netlink.Link) bool {
	return link.Attrs().MasterIndex != 0 || slices.ContainsFunc(all, func(l netlink.Link) bool {
		a := l.Attrs()
		return a.ParentIndex == link.Attrs().Index && a.NetNsID < 0 && a.Index != a.ParentIndex
	})
}
