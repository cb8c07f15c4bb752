// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrNoLink is wrapped by the error for a missing link.
var ErrNoLink = errors.New("no such link")

// Link is a snapshot of a network interface.
type Link struct {
	Name  string
	Kind  string // IFLA_INFO_KIND, such as "wireguard"; "device" for links without one
	Index int
	// Master is the index of the bridge or bond that the link is a port of; 0: none.
	Master int
	MTU    int // bytes
	Up     bool
	// Tunnel tells that packets enter a tunnel: WireGuard or a TUN. A TAP is a cable, of a virtual machine for example.
	Tunnel bool
}

// Links lists all links.
func Links() ([]Link, error) {
	all, err := Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("listing the network interfaces: %w", err)
	}
	links := make([]Link, len(all))
	for i, l := range all {
		links[i] = linkOf(l)
	}
	return links, nil
}

// FindLink returns the link of that name, or ErrNoLink.
func FindLink(name string) (Link, error) {
	l, err := find(name)
	if err != nil {
		return Link{}, err
	}
	return linkOf(l), nil
}

// IsTunnel reports whether packets for the link with this index enter a tunnel.
func IsTunnel(index int) bool {
	l, err := linkAt(index)
	return err == nil && linkOf(l).Tunnel
}

// SetLinkUp sets a link's MTU (bytes) and brings it up.
func SetLinkUp(name string, mtu int) error {
	return onLink(name, func(l netlink.Link) error {
		if err := netlink.LinkSetMTU(l, mtu); err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	}, "setting %s up with an MTU of %d", name, mtu)
}

// SetMTU sets a link's MTU (bytes).
func SetMTU(name string, mtu int) error {
	return onLink(name, func(l netlink.Link) error { return netlink.LinkSetMTU(l, mtu) }, "setting the MTU of %s to %d", name, mtu)
}

// onLink calls do with the link of that name. doing and its arguments say what do does.
func onLink(name string, do func(netlink.Link) error, doing string, args ...any) error {
	l, err := find(name)
	if err == nil {
		err = do(l)
	}
	if err != nil {
		return fmt.Errorf(doing+": %w", append(args, err)...)
	}
	return nil
}

// The kernel's in6_addr_gen_mode (include/uapi/linux/if_link.h).
const addrGenModeNone = 1

// DisableLinkLocal stops the kernel from generating an IPv6 link-local address when the link comes
// up. The in-kernel WireGuard does the same for its devices (drivers/net/wireguard/device.c,
// wg_open). It fails on a host without IPv6.
func DisableLinkLocal(name string) error {
	return onLink(name, func(l netlink.Link) error { return netlink.LinkSetIP6AddrGenMode(l, addrGenModeNone) }, "disabling link-local addresses on %s", name)
}

// The values of rp_filter that its functions know (Linux's ip-sysctl documentation).
const rpFilterStrict, rpFilterLoose = 1, 2

// Settings of a link in IFLA_INET_CONF (IPV4_DEVCONF_SEND_REDIRECTS, IPV4_DEVCONF_RP_FILTER).
const devconfSendRedirects, devconfRPFilter = 6, 8

// LoosenRPFilter makes strict reverse path filtering on a link loose: a packet's source then needs a route, but not one by this link. It reports
// whether that changed anything. It writes over netlink, because /proc/sys is read-only in most containers.
func LoosenRPFilter(name string) (changed bool, err error) {
	const sysctl = "ipv4/conf/%s/rp_filter"
	if max(Sysctl(fmt.Sprintf(sysctl, "all")), Sysctl(fmt.Sprintf(sysctl, name))) != rpFilterStrict { // as the kernel combines them
		return false, nil
	}
	if err := setIPv4Conf(name, devconfRPFilter, rpFilterLoose); err != nil {
		return false, fmt.Errorf("making rp_filter loose on %s: %w", name, err)
	}
	return true, nil
}

// setIPv4Conf sets a value of IFLA_INET_CONF, which is the sysctl net.ipv4.conf of the link.
func setIPv4Conf(name string, setting int, value uint32) error {
	l, err := find(name)
	if err != nil {
		return err
	}
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(l.Attrs().Index)
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(unix.IFLA_INET_CONF, nil).AddRtAttr(setting, nl.Uint32Attr(value))
	req.AddData(msg)
	req.AddData(spec)
	_, err = req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// DisableRedirects stops the kernel from sending ICMP redirects for packets that it forwards back
// to a link. The in-kernel WireGuard does the same for its devices
// (drivers/net/wireguard/device.c, wg_open). The kernel sends them if either the link's setting or
// the setting of "all" permits it. So it clears both, and reports whether the setting of "all" was
// set. Other links keep their own setting, which is on by default.
func DisableRedirects(name string) (all bool, err error) {
	if err := setIPv4Conf(name, devconfSendRedirects, 0); err != nil {
		return false, fmt.Errorf("disabling ICMP redirects on %s: %w", name, err)
	}
	if Sysctl("ipv4/conf/all/send_redirects") == 0 {
		return false, nil
	}
	if err := writeSysctl("/proc/sys/net/ipv4/conf/all/send_redirects", "0"); err != nil {
		return false, fmt.Errorf("setting net.ipv4.conf.all.send_redirects to 0: %w", err)
	}
	return true, nil
}

// Forwards reports whether the kernel forwards IPv4 packets that arrive on a link.
func Forwards(name string) bool { return Sysctl("ipv4/conf/"+name+"/forwarding") != 0 }

// DeleteLink deletes a link with its addresses and routes.
func DeleteLink(name string) error {
	return onLink(name, netlink.LinkDel, "deleting %s", name)
}

// AddAddress adds an address with the host's bits, without a broadcast address, as `ip address add` does.
func AddAddress(name string, addr netip.Prefix) error {
	return onLink(name, func(l netlink.Link) error {
		if addr.Addr().Is4In6() {
			return changeMappedAddress(l, addr, unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
		}
		err := netlink.AddrAdd(l, &netlink.Addr{IPNet: ipNet(addr), Broadcast: net.IPv4zero, Scope: addressScope(addr.Addr())})
		return namingSysctl(err, name, addr)
	}, "adding address %s to %s", addr, name)
}

// addressScope returns the scope that ip(8) gives to an address. The kernel derives the scope of
// an IPv6 address itself.
func addressScope(addr netip.Addr) int {
	if addr.Is4() && addr.IsLoopback() {
		return unix.RT_SCOPE_HOST
	}
	return unix.RT_SCOPE_UNIVERSE
}

// RemoveAddress removes an address with the host's bits. A missing address is no error. An IPv6
// address has one prefix length at a time on a link, and is removed whatever it is.
func RemoveAddress(name string, addr netip.Prefix) error {
	return onLink(name, func(l netlink.Link) error {
		if err := removeAddress(l, addr); !errors.Is(err, unix.EADDRNOTAVAIL) {
			return err
		}
		return nil
	}, "removing address %s from %s", addr, name)
}

func removeAddress(l netlink.Link, addr netip.Prefix) error {
	if addr.Addr().Is4In6() {
		return changeMappedAddress(l, addr, unix.RTM_DELADDR, 0)
	}
	found := netlink.Addr{IPNet: ipNet(addr)}
	if addr.Addr().Is6() {
		all, err := Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, int(IPv6)) })
		if err != nil {
			return err
		}
		for i := range all {
			if all[i].IP.Equal(found.IP) {
				found = all[i]
				break
			}
		}
	}
	return netlink.AddrDel(l, &found)
}

// Addresses lists a link's addresses with the host's bits, IPv4 first, in the kernel's order.
func Addresses(name string) ([]netip.Prefix, error) {
	l, err := find(name)
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of interface %s: %w", name, err)
	}
	var prefixes []netip.Prefix
	for _, family := range Families() {
		addrs, err := Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, int(family)) })
		if err != nil {
			return nil, fmt.Errorf("listing the %s addresses of interface %s: %w", family, name, err)
		}
		for _, a := range addrs {
			prefixes = append(prefixes, prefixOf(a.IPNet))
		}
	}
	return prefixes, nil
}

// LinkAddresses lists all links, and by the link's index their addresses with the length of the
// subnet. It leaves the addresses of the loopback network out.
func LinkAddresses() (links []netlink.Link, addresses map[int][]netip.Prefix, err error) {
	if links, err = Dump(netlink.LinkList); err != nil {
		return nil, nil, fmt.Errorf("listing the links: %w", err)
	}
	list, err := Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, nil, fmt.Errorf("listing the addresses: %w", err)
	}
	addresses = map[int][]netip.Prefix{}
	for i := range list {
		if p := prefixOf(list[i].IPNet); p.IsValid() && !p.Addr().IsLoopback() {
			addresses[list[i].LinkIndex] = append(addresses[list[i].LinkIndex], p)
		}
	}
	return links, addresses, nil
}

func linkAt(index int) (netlink.Link, error) {
	return Dump(func() (netlink.Link, error) { return netlink.LinkByIndex(index) })
}

func find(name string) (netlink.Link, error) {
	l, err := Dump(func() (netlink.Link, error) { return netlink.LinkByName(name) })
	if _, ok := errors.AsType[netlink.LinkNotFoundError](err); ok {
		return nil, fmt.Errorf("finding %s: %w", name, ErrNoLink)
	}
	if err != nil {
		return nil, fmt.Errorf("finding %s: %w", name, err)
	}
	return l, nil
}

func linkOf(l netlink.Link) Link {
	a, tunnel := l.Attrs(), l.Type() == "wireguard"
	if t, ok := l.(*netlink.Tuntap); ok {
		tunnel = t.Mode == netlink.TUNTAP_MODE_TUN
	}
	return Link{Name: a.Name, Kind: l.Type(), Index: a.Index, Master: a.MasterIndex, MTU: a.MTU, Up: a.Flags&net.FlagUp != 0, Tunnel: tunnel}
}
