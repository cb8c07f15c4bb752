// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// errNoInterface means that no interface has an address of the node.
var errNoInterface = errors.New("no interface of this host has any of the node's addresses: set mtu of its pool in the RopewalkMesh")

// SetInterface implements Network. One address of each pod prefix is the source
// of the node's own packets to other nodes' pods: they accept no other. It is checked on each
// reconcile, since other programs may change it. The node may also get its prefixes late (calico
// #8039), or get others, whose former addresses belong to another node.
//
// Strict reverse path filtering would drop another node's answers to pods: they come from an
// address to which packets bypass the tunnel. The same setting of the node's own devices, at which
// packets of other nodes' pods arrive, is the administrator's.
func (System) SetInterface(name string, mtu int, pods []netip.Prefix) (changes int, err error) {
	if slices.ContainsFunc(pods, isIPv6) {
		if err := hostnet.DisableLinkLocal(name); err != nil {
			return 0, err
		}
	}
	have, err := hostnet.Addresses(name)
	if err != nil {
		return 0, err
	}
	var want []netip.Prefix
	for _, p := range pods {
		a := SourceAddress(p)
		want = append(want, a)
		if slices.Contains(have, a) {
			continue
		}
		changes++
		if err := hostnet.AddAddress(name, a); err != nil && !errors.Is(err, unix.EEXIST) {
			return changes, err
		}
	}
	n, err := removeOtherAddresses(name, have, want)
	if changes += n; err != nil {
		return changes, err
	}
	loosened, err := hostnet.LoosenRPFilter(name)
	if err != nil {
		return changes, err
	}
	if loosened {
		changes++
	}
	l, err := hostnet.FindLink(name)
	if err != nil || l.Up && l.MTU == mtu {
		return changes, err
	}
	return changes + 1, hostnet.SetLinkUp(name, mtu)
}

// SourceAddress returns the address of a pod prefix that is the node's own. It is the first of
// IPv4, which no plugin gives to a pod, and the last of IPv6, which host-local gives out after all
// others. The first of IPv6 is the Subnet-Router anycast address (RFC 4291, section 2.6.1) wherever
// the plugin's bridge has another address of the prefix. The kernel sends no ICMPv6 error to it
// (net/ipv6/icmp.c, icmpv6_route_lookup), so that path MTU discovery fails.
func SourceAddress(pods netip.Prefix) netip.Prefix {
	a := pods.Masked().Addr()
	if a.Is6() {
		b := a.As16()
		for i := pods.Bits(); i < a.BitLen(); i++ {
			b[i/8] |= 0x80 >> (i % 8)
		}
		a = netip.AddrFrom16(b)
	}
	return netip.PrefixFrom(a, a.BitLen())
}

// removeOtherAddresses removes the host addresses (/32, /128) of an interface that it should not have, except link-local ones.
func removeOtherAddresses(name string, have, want []netip.Prefix) (changes int, err error) {
	for _, a := range have {
		if !a.IsSingleIP() || a.Addr().IsLinkLocalUnicast() || slices.Contains(want, a) {
			continue
		}
		changes++
		if err := hostnet.RemoveAddress(name, a); err != nil {
			return changes, err
		}
	}
	return changes, nil
}

func isIPv6(p netip.Prefix) bool { return !p.Addr().Is4() }

// LinkMTU implements Network.
func (System) LinkMTU(addrs []netip.Addr) (mtu int, err error) {
	links, err := hostnet.Links()
	if err != nil {
		return 0, err
	}
	own, err := ownAddrs()
	if err != nil {
		return 0, err
	}
	for _, a := range addrs {
		for _, l := range links {
			if slices.Contains(own[a], l.Index) && (mtu == 0 || l.MTU < mtu) {
				mtu = l.MTU
			}
		}
	}
	if mtu == 0 {
		return 0, fmt.Errorf("%w: %v", errNoInterface, addrs)
	}
	return mtu, nil
}
