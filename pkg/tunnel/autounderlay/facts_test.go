// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/test/expect"
)

func (s *testNet) gather(q query) (f facts) {
	s.Helper()
	expect.NoError(s, s.here.Do(func() error {
		f = gatherFacts(&q)
		return nil
	}))
	return f
}

// at is the endpoint of a peer at an address.
func at(addr string) config.Endpoint {
	return config.Endpoint{AddrPort: netip.AddrPortFrom(netip.MustParseAddr(addr), 51820)}
}

func TestFactsDescribeDeviceOfMostPeers(t *testing.T) {
	s := newLab(t)
	first := s.cable(hereAt, farAt)
	second := s.cable(netip.MustParsePrefix("198.51.100.1/24"), netip.MustParsePrefix("198.51.100.2/24"))
	a := func(list ...string) (peers []config.Endpoint) {
		for _, one := range list {
			peers = append(peers, at(one))
		}
		return peers
	}
	for name, test := range map[string]struct {
		q      query
		device string
		err    error
	}{
		"one":                {query{peers: a("192.0.2.2")}, first, nil},
		"most":               {query{peers: a("192.0.2.2", "198.51.100.2", "198.51.100.3")}, second, nil},
		"some unreachable":   {query{peers: a("192.0.2.2", "203.0.113.1", "2001:db8::1")}, first, nil},
		"configured":         {query{device: first, peers: a("198.51.100.2", "192.0.2.2")}, first, nil},
		"configured, unused": {query{device: first}, first, nil},
		"none":               {query{}, "", errNoPeers},
		"no route":           {query{peers: a("203.0.113.1")}, "", errNoRoutes},
		"missing":            {query{device: "missing", peers: a("192.0.2.2")}, "", hostnet.ErrNoLink},
		"itself":             {query{peers: a("192.0.2.1")}, "", errNoRoutes},
		"itself and one":     {query{peers: a("192.0.2.1", "198.51.100.1", "192.0.2.2")}, first, nil},
	} {
		f := s.gather(test.q)
		if f.device.Name != test.device || !errors.Is(f.deviceErr, test.err) {
			t.Errorf("%s: got %+v, want device %v, deviceErr %v", name, f, test.device, test.err)
		}
		if d := f.device; d.Name != "" && (d.Driver != "veth" || d.MTU != 1500 || d.Known && !d.Capabilities.Native || d.Capabilities.ZeroCopy) {
			t.Errorf("%s: of the device: %+v", name, f)
		}
	}
}

func TestLinkLocalPeerSelectsDeviceOfItsScope(t *testing.T) {
	here, scopes := netlabtest.LinkLocal(t, "auto")
	s := &testNet{T: t, here: here}
	for device, scope := range scopes {
		peer := config.Endpoint{AddrPort: netip.MustParseAddrPort("[fe80::2]:51820"), Scope: scope}
		if f := s.gather(query{peers: []config.Endpoint{peer}}); f.device.Name != device {
			t.Errorf("got %+v, want device %v", f, device)
		}
	}
}

func TestVLANRouteUsesUnderlyingDevice(t *testing.T) {
	s := newLab(t)
	dev := s.cable(hereAt, farAt)
	var unable error
	s.link(dev, func(l netlink.Link) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex = "v7", l.Attrs().Index
		unable = netlink.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: 7})
		return nil
	})
	if errors.Is(unable, unix.EOPNOTSUPP) {
		t.Skip("needs a kernel with VLANs (CONFIG_VLAN_8021Q)")
	}
	expect.NoError(t, unable)
	expect.NoError(t, s.here.SetUp("v7", 0, netip.MustParsePrefix("198.51.100.1/24")))
	if f := s.gather(query{peers: []config.Endpoint{at("198.51.100.2")}}); f.device.Name != dev {
		t.Errorf("got %+v, want device %v", f, dev)
	}
	if f := s.gather(query{device: "v7"}); f.device.Name != "v7" || f.device.Known && f.device.Capabilities.Native {
		t.Errorf("a configured VLAN device: %+v", f)
	}
}

func TestRouteLookupUsesMark(t *testing.T) {
	s := newLab(t)
	s.cable(hereAt, farAt)
	second := s.cable(netip.MustParsePrefix("198.51.100.1/24"), netip.MustParsePrefix("198.51.100.2/24"))
	s.link(second, func(l netlink.Link) error {
		r := &netlink.Route{LinkIndex: l.Attrs().Index, Table: 77, Gw: netip.MustParseAddr("198.51.100.2").AsSlice()}
		_, r.Dst, _ = net.ParseCIDR("0.0.0.0/0")
		rule := netlink.NewRule()
		rule.Mark, rule.Table = 5, 77
		return errors.Join(netlink.RouteAdd(r), netlink.RuleAdd(rule))
	})
	if f := s.gather(query{peers: []config.Endpoint{farEndpoint}, mark: 5}); f.device.Name != second {
		t.Errorf("got %+v, want device %v", f, second)
	}
}
