// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
)

// resolver asks the kernel how it would send, in the network namespace of its thread. Neither packet filters (netfilter, tc) nor
// IPsec policies are asked: what is sent by AF_XDP passes them by.
type resolver struct {
	nl     *netlink.Handle
	device int // the one whose queues there are, 0 for none
	limit  int // the longest IP packet that frames hold
	mark   uint32
	rules  bool // whether there are rules that depend on what is not asked for
}

func newResolver(frameSize int) (*resolver, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	return &resolver{nl: h, limit: frameLimit(frameSize)}, nil
}

// frameLimit is the longest IP packet that a frame of that Way.FrameSize holds.
func frameLimit(frameSize int) int {
	if frameSize == 0 {
		frameSize = xsk.DefaultFrameSize
	}
	return frameSize - xsk.TxHeadroom - ethernetLen - vlanLen
}

// begin prepares for a series of questions.
func (r *resolver) begin(mark uint32) {
	r.mark, r.rules = mark, false
	for _, family := range hostnet.Families() {
		rules, err := hostnet.Dump(func() ([]netlink.Rule, error) { return r.nl.RuleList(int(family)) })
		r.rules = r.rules || err == nil && oddRules(rules) // without rules in the kernel (CONFIG_IP_MULTIPLE_TABLES), none are odd
	}
}

// oddRules reports whether one of the rules depends on ports, protocol or user.
func oddRules(rules []netlink.Rule) bool {
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

// find fills in way and hop.
func (r *resolver) find(to target, p *path) Reason {
	switch {
	case r.device == 0:
		return OtherDevice
	case r.rules:
		return OddRules
	case to.src.IsValid() && !r.isLocal(to.src, to.scope):
		return NoSource
	}
	route, reason := r.route(to)
	if reason != ViaXDP {
		return reason
	}
	if reason := r.leave(route, &p.egress); reason != ViaXDP {
		return reason
	}
	if reason := addresses(to, route, &p.egress); reason != ViaXDP {
		return reason
	}
	p.egress.hops = hopLimit(route, to.dst, p.egress.device)
	if n := sysctl("ipv6/conf/" + p.egress.device + "/mtu"); to.dst.Is6() && n > 0 {
		p.egress.mtu = min(p.egress.mtu, n) // what routers advertise
	}
	p.hop = hopOf(route, to.dst)
	n, err := askNeighbour(p.hop)
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

// oif is the index of the interface that a link-local address is on.
func oif(a netip.Addr, scope uint32) int {
	if isScoped(a) {
		return int(scope)
	}
	return 0
}

// route asks for the way to a target, that leads to another host.
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
	case routes[0].Encap != nil || routes[0].NewDst != nil || len(routes[0].MultiPath) > 0:
		return nil, OddRoute
	}
	return &routes[0], ViaXDP
}

// leave finds out which device a route leads to, and fills in what of the way depends on that.
func (r *resolver) leave(route *netlink.Route, w *egress) Reason {
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
		w.tagged, w.vlan = true, uint16(v.VlanId)
	}
	w.device = a.Name
	w.from = mac(a.HardwareAddr)
	w.mtu = min(a.MTU, r.limit)
	if route.MTU > 0 {
		w.mtu = min(w.mtu, route.MTU)
	}
	return ViaXDP
}

// addresses fills in from where to where the packets are.
func addresses(to target, route *netlink.Route, w *egress) Reason {
	w.src, w.dst = to.src, to.dst
	if !w.src.IsValid() {
		w.src, _ = netip.AddrFromSlice(route.Src)
		if to.dst.Is4() {
			w.src = w.src.Unmap()
		}
	}
	if !w.src.IsValid() || w.src.Is4() != w.dst.Is4() || w.src.IsUnspecified() {
		return NoSource
	}
	return ViaXDP
}

// hopOf returns the neighbour that packets are handed to: the route's gateway, of either family, or the destination.
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

// defaultHops is what is sent when nobody says otherwise (RFC 1700).
const defaultHops = 64

// hopLimit is the route's, or what the host uses on the device.
func hopLimit(route *netlink.Route, dst netip.Addr, device string) uint8 {
	n := route.Hoplimit
	if n == 0 && dst.Is6() {
		n = sysctl("ipv6/conf/" + device + "/hop_limit")
	} else if n == 0 {
		n = sysctl("ipv4/ip_default_ttl")
	}
	if n <= 0 || n > 255 {
		return defaultHops
	}
	return uint8(n)
}

// sysctl reads a number under net, in the thread's network namespace; 0 is none.
func sysctl(name string) int {
	b, err := os.ReadFile("/proc/sys/net/" + name)
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	return n
}

// askNeighbour returns the zero neighbour for one that the kernel does not know. (RTM_GETNEIGH for a single one is in Linux
// from 5.0.)
func askNeighbour(h hop) (neighbour, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	request.AddData(&netlink.Ndmsg{Family: uint8(hostnet.FamilyOf(h.addr)), Index: uint32(h.device)})
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, h.addr.AsSlice()))
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	switch {
	case errors.Is(err, unix.ENOENT):
		return neighbour{}, nil
	case err != nil:
		return neighbour{}, fmt.Errorf("asking for the neighbour %s: %w", h.addr, err)
	}
	for _, m := range messages {
		if got, n, ok := parseNeighbour(m); ok && got == h {
			return n, nil
		}
	}
	return neighbour{}, nil
}

// confirm has the kernel find out whether a neighbour that it has not heard of for a while is still there, as it would if it
// had something to send (NTF_USE): it does not see what AF_XDP sends.
func (r *resolver) confirm(h hop) {
	n, err := askNeighbour(h)
	if err != nil || n.state&netlink.NUD_STALE == 0 {
		return
	}
	// Should it fail, the neighbour is asked for again when it has become unusable.
	_ = r.nl.NeighSet(&netlink.Neigh{
		LinkIndex: h.device, Family: int(hostnet.FamilyOf(h.addr)), Flags: netlink.NTF_USE, IP: h.addr.AsSlice(),
	})
}

// isScoped reports whether an address is one on every link.
func isScoped(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

// isStacked reports whether there are devices upon a device, VLANs above all, or it is part of one. It errs on that side.
func (r *resolver) isStacked(link netlink.Link) bool {
	if link.Attrs().MasterIndex != 0 {
		return true
	}
	all, err := hostnet.Dump(r.nl.LinkList)
	return err != nil || slices.ContainsFunc(all, func(l netlink.Link) bool {
		a := l.Attrs()
		return a.ParentIndex == link.Attrs().Index && a.NetNsID < 0 && a.Index != a.ParentIndex
	})
}

// local lists this host's addresses.
func (r *resolver) local() ([]netip.Addr, error) {
	var all []netip.Addr
	for _, family := range hostnet.Families() {
		list, err := hostnet.Dump(func() ([]netlink.Addr, error) { return r.nl.AddrList(nil, int(family)) })
		if err != nil {
			return nil, fmt.Errorf("listing the %s addresses: %w", family, err)
		}
		for _, l := range list {
			if a, ok := netip.AddrFromSlice(l.IP); ok {
				all = append(all, a.Unmap())
			}
		}
	}
	return all, nil
}
