// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// localPods returns the prefixes within r.Routes that the host's main table routes to pods of this
// node. The devices are veth, netkit or dummy, or a bridge that has only such ports. Calico, cloud
// providers' plugins and Cilium have such routes whatever Node.spec says. Devices of default routes
// do not count, because other nodes may be behind them, and neither does the tunnel.
func localPods(r *Routing, tunnel int) ([]netip.Prefix, error) {
	if r == nil || len(r.Routes) == 0 {
		return nil, nil
	}
	var within bart.Lite
	for _, p := range r.Routes {
		within.Insert(p)
	}
	var routes []netlink.Route
	for _, family := range hostnet.Families() {
		list, err := hostnet.Dump(func() ([]netlink.Route, error) {
			filter := &netlink.Route{Table: unix.RT_TABLE_MAIN}
			return netlink.RouteListFiltered(int(family), filter, netlink.RT_FILTER_TABLE) //nolint:forbidigo // within hostnet.Dump
		})
		if err != nil {
			return nil, fmt.Errorf("listing this host's routes: %w", err)
		}
		routes = append(routes, list...)
	}
	devices, err := podDevices(routes)
	if err != nil {
		return nil, err
	}
	delete(devices, tunnel)
	own, err := ownAddrs()
	if err != nil {
		return nil, err
	}
	var local []netip.Prefix
	for i := range routes {
		p := destination(&routes[i])
		if p.Bits() > 0 && within.LookupPrefix(p) && devices[routes[i].LinkIndex] && staysOnHost(&routes[i], p, own) {
			local = append(local, p)
		}
	}
	return local, nil
}

// staysOnHost reports whether a unicast route has no gateway, or an address of the host within the
// destination. Cilium's route to the node's own pods has such a gateway.
func staysOnHost(r *netlink.Route, dst netip.Prefix, own map[netip.Addr][]int) bool {
	gateway, ok := netip.AddrFromSlice(r.Gw)
	gateway = gateway.Unmap()
	return r.Type == unix.RTN_UNICAST && r.Via == nil && len(r.MultiPath) == 0 && (!ok || own[gateway] != nil && dst.Contains(gateway))
}

// destination returns a route's destination, or the zero prefix of a default route.
func destination(r *netlink.Route) netip.Prefix {
	if r.Dst == nil {
		return netip.Prefix{}
	}
	addr, _ := netip.AddrFromSlice(r.Dst.IP)
	bits, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits)
}

// podDevices returns the indexes of the devices behind which only pods of this node can be.
func podDevices(routes []netlink.Route) (map[int]bool, error) {
	links, err := hostnet.Links()
	if err != nil {
		return nil, err
	}
	devices := map[int]bool{}
	for _, l := range links {
		devices[l.Index] = slices.Contains([]string{"veth", "netkit", "dummy", "bridge"}, l.Kind)
	}
	for _, l := range links {
		if l.Master != 0 && !slices.Contains([]string{"veth", "netkit", "tuntap"}, l.Kind) {
			devices[l.Master] = false
		}
	}
	for i := range routes {
		if destination(&routes[i]).Bits() <= 0 {
			devices[routes[i].LinkIndex] = false
		}
	}
	return devices, nil
}

// ownAddrs returns the host's addresses, with the indexes of the interfaces that have them.
func ownAddrs() (map[netip.Addr][]int, error) {
	list, err := hostnet.Dump(func() ([]netlink.Addr, error) {
		return netlink.AddrList(nil, netlink.FAMILY_ALL) //nolint:forbidigo // within hostnet.Dump
	})
	if err != nil {
		return nil, fmt.Errorf("listing this host's addresses: %w", err)
	}
	own := make(map[netip.Addr][]int, len(list))
	for _, a := range list {
		addr, _ := netip.AddrFromSlice(a.IP)
		own[addr.Unmap()] = append(own[addr.Unmap()], a.LinkIndex)
	}
	return own, nil
}
