// SPDX-License-Identifier: Apache-2.0

package netlab_test

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/test/expect"
)

// flags returns the flags of a device in a host, 0 if it is not there.
func flags(t *testing.T, h *netlab.Host, device string) (f uint32) {
	t.Helper()
	expect.NoError(t, h.Do(func() error {
		if l, err := netlink.LinkByName(device); err == nil {
			f = l.Attrs().RawFlags
		}
		return nil
	}))
	return f
}

func TestPortsReturnWhenLabCloses(t *testing.T) {
	_, hosts := netlabtest.Hosts(t, "ports", "outer")
	outer := hosts[0]
	expect.NoError(t, outer.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "p0"
		veth := netlink.NewVeth(attrs)
		veth.PeerName = "p1"
		return netlink.LinkAdd(veth)
	}))
	expect.NoError(t, outer.SetUp("p0", 0))
	inner, err := netlab.New(netlabtest.Prefix(t))
	expect.NoError(t, err)
	a, err := inner.Host("a")
	expect.NoError(t, err)
	b, err := inner.Host("b")
	expect.NoError(t, err)
	var here *netlab.Host
	expect.NoError(t, outer.Do(func() (err error) {
		here, err = inner.Here()
		return err
	}))
	_, err = inner.ConnectPorts(here, a, b, [2]string{"p0", "p1"}, netlab.CableConfig{AddrsA: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}})
	expect.NoError(t, err)
	if flags(t, a, "p0")&unix.IFF_UP == 0 || flags(t, b, "p1")&unix.IFF_UP == 0 || flags(t, outer, "p0") != 0 {
		t.Error("the ports are not up in their hosts")
	}
	expect.NoError(t, inner.Close())
	if p0, p1 := flags(t, outer, "p0"), flags(t, outer, "p1"); p0&unix.IFF_UP == 0 || p1 == 0 || p1&unix.IFF_UP != 0 {
		t.Errorf("got flags %#x and %#x, want p0 up and p1 down, as before", p0, p1)
	}
}

func TestPortInUseIsRefused(t *testing.T) {
	_, dst, err := net.ParseCIDR("198.51.100.0/24")
	expect.NoError(t, err)
	_, multipath, err := net.ParseCIDR("203.0.113.0/24")
	expect.NoError(t, err)
	gateway := net.ParseIP("192.0.2.254")
	for want, use := range map[string]func(l netlink.Link) error{
		"in use: it has the address 192.0.2.1/24": func(l netlink.Link) error {
			addr, err := netlink.ParseAddr("192.0.2.1/24")
			return errors.Join(err, netlink.AddrAdd(l, addr))
		},
		"in use: the route to 198.51.100.0/24 leaves by it": func(l netlink.Link) error {
			return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Gw: gateway, Flags: int(netlink.FLAG_ONLINK), Table: 100})
		},
		"in use: the route to 203.0.113.0/24 leaves by it": func(l netlink.Link) error {
			hop := netlink.NexthopInfo{LinkIndex: l.Attrs().Index, Gw: gateway, Flags: int(netlink.FLAG_ONLINK)}
			return netlink.RouteAdd(&netlink.Route{Dst: multipath, MultiPath: []*netlink.NexthopInfo{&hop, &hop}})
		},
		"in use: macvlan above is above it": func(l netlink.Link) error {
			return netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "above", ParentIndex: l.Attrs().Index}, Mode: netlink.MACVLAN_MODE_BRIDGE})
		},
		"in use: vxlan above is above it": func(l netlink.Link) error {
			return netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "above"}, VxlanId: 7, VtepDevIndex: l.Attrs().Index, Port: 4789})
		},
	} {
		t.Run(want, func(t *testing.T) {
			lab, hosts := netlabtest.Hosts(t, "ports", "outer", "a", "b")
			outer, a, b := hosts[0], hosts[1], hosts[2]
			cable, err := lab.Cable(outer, a, netlab.CableConfig{})
			expect.NoError(t, err)
			expect.NoError(t, outer.Do(func() error {
				l, err := netlink.LinkByName(cable.DeviceA)
				if err != nil {
					return err
				}
				return use(l)
			}))
			_, err = lab.ConnectPorts(outer, a, b, [2]string{cable.DeviceA, "none"}, netlab.CableConfig{})
			if err == nil || !strings.Contains(err.Error(), want) || flags(t, outer, cable.DeviceA) == 0 {
				t.Errorf("got %v, want %q, and the device where it was", err, want)
			}
		})
	}
}
