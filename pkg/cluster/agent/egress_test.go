// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// withRoutes calls f in a network namespace with 192.0.2.0/24 on eth0 and 10.244.0.0/16 on the tunnel tun0.
func withRoutes(t *testing.T, f func() error) {
	t.Helper()
	h, _ := emptyHost(t)
	in(t, h, func() error {
		attrs := func(name string) netlink.LinkAttrs {
			a := netlink.NewLinkAttrs()
			a.Name = name
			return a
		}
		tun := &netlink.Tuntap{LinkAttrs: attrs("tun0"), Mode: netlink.TUNTAP_MODE_TUN}
		eth := &netlink.Veth{LinkAttrs: attrs("eth0"), PeerName: "far"}
		far := &netlink.Device{LinkAttrs: attrs("far")}
		for device, cidr := range map[netlink.Link]string{eth: "192.0.2.1/24", tun: "10.244.1.1/16"} {
			addr, err := netlink.ParseAddr(cidr)
			if err = errors.Join(err, netlink.LinkAdd(device), netlink.AddrAdd(device, addr), netlink.LinkSetUp(device)); err != nil {
				return err
			}
		}
		return errors.Join(netlink.LinkSetUp(far), f())
	})
}

func TestEgressDeviceIsPhysicalInterface(t *testing.T) {
	withRoutes(t, func() error {
		var w egressDevices
		for addr, want := range map[string]string{
			"192.0.2.2": "eth0", "10.244.2.10": "", "192.0.2.1": "", "127.0.0.1": "", "192.0.2.255": "", "198.51.100.1": "", "2001:db8::1": "",
		} {
			if got, err := w.lookup(netip.MustParseAddr(addr)); got != want || err != nil {
				t.Errorf("%s: got %q, %v, want %q", addr, got, err, want)
			}
		}
		if err := hostnet.DeleteLink("eth0"); err != nil {
			return err
		}
		if got, err := w.lookup(netip.MustParseAddr("192.0.2.2")); got != "eth0" || err != nil {
			t.Errorf("a cached device was looked up again: got %q, error %v, want %q, no error", got, err, "eth0")
		}
		return nil
	})
}

// TestTunneledPeerIsLeftOut: for example a peer with an address among a tunnel's pods.
func TestTunneledPeerIsLeftOut(t *testing.T) {
	withRoutes(t, func() error {
		s := newSpreadReconciler(Config{Ports: spread.DefaultPorts}, func() {})
		var plan mesh.SpreadPlan
		for _, at := range []string{"192.0.2.2:51820", "10.244.2.10:51820", "192.0.2.255:51820"} {
			plan.Peers = append(plan.Peers, mesh.SpreadPeer{
				Node: at, Endpoints: []netip.AddrPort{netip.MustParseAddrPort(at)}, Gather: spread.DefaultPorts, Spread: true,
			})
		}
		configs, err := s.configs(plan, 0, true)
		if err != nil || len(configs) != 1 || len(configs["eth0"].Peers) != 1 {
			t.Errorf("got %+v, error %v, want length 1, no error", configs, err)
		}
		return nil
	})
}

// TestPeersOfEncryptedHostsAreFound: with Calico's host encryption all packets for other nodes take its tunnel, except those with the tunnel's mark.
func TestPeersOfEncryptedHostsAreFound(t *testing.T) {
	withRoutes(t, func() error {
		const mark, port, table = 0x100000, 51820, 1
		rule, mask := netlink.NewRule(), uint32(mark)
		rule.Family, rule.Invert, rule.Mark, rule.Mask, rule.Table, rule.Priority = unix.AF_INET, true, mark, &mask, table, 99
		tun, err := netlink.LinkByName("tun0")
		if err != nil {
			return err
		}
		err = errors.Join(netlink.RuleAdd(rule), netlink.RouteAdd(&netlink.Route{
			Dst: netlink.NewIPNet(net.IPv4(192, 0, 2, 2)), Table: table, LinkIndex: tun.Attrs().Index, Scope: netlink.SCOPE_LINK,
		}))
		if err != nil {
			return err
		}
		at := netip.MustParseAddrPort("192.0.2.2:51820")
		plan := mesh.SpreadPlan{Peers: []mesh.SpreadPeer{{Node: "n2", Endpoints: []netip.AddrPort{at}, Gather: spread.DefaultPorts, Spread: true}}}
		s := newSpreadReconciler(Config{Ports: spread.DefaultPorts}, func() {})
		for _, c := range []struct {
			mark uint32
			want int // devices
		}{{0, 0}, {mark, 1}, {0, 0}} {
			tunnels := []spreader.Tunnel{{Name: "wg1", Port: port + 1, FwMark: 7}, {Name: "wireguard.cali", Port: port, FwMark: c.mark}}
			if configs, err := s.configs(plan, markOf(tunnels, port), false); len(configs) != c.want || err != nil {
				t.Errorf("mark %#x: got %+v, error %v, want length %d", c.mark, configs, err, c.want)
			}
		}
		return nil
	})
}

func TestGathersReportsMajorityOfPeers(t *testing.T) {
	s := newSpreadReconciler(Config{Ports: spread.DefaultPorts}, func() {})
	config := func(peers ...string) *spreader.Config {
		cfg := configsFor(map[string][]string{"eth0": peers})["eth0"]
		return &cfg
	}
	if s.gathers(config("192.0.2.2:51820")) {
		t.Error("gathers without a follower")
	}
	s.follower = &deviceFollower{applied: *config("192.0.2.2:51820", "192.0.2.3:51820")}
	for _, c := range []struct {
		cfg  *spreader.Config
		want bool
	}{
		{config("192.0.2.2:51820"), true},
		{config("192.0.2.9:51820"), false},
		{config("192.0.2.2:51820", "192.0.2.9:51820"), false},
		{config("192.0.2.2:51820", "192.0.2.3:51820", "192.0.2.4:51820"), true}, // the third does not fit
		{config("192.0.2.2:51820", "192.0.2.4:51820", "192.0.2.5:51820"), false},
	} {
		if got := s.gathers(c.cfg); got != c.want {
			t.Errorf("%v: got %t, want %t", c.cfg.Peers, got, c.want)
		}
	}
	s.follower.gatherMisses.Store(true)
	if s.gathers(config("192.0.2.2:51820")) {
		t.Error("gathers behind another program")
	}
}

// TestPeersOfAllDevicesShareOneConfig: peers may send by another device than the one that leads to them.
func TestPeersOfAllDevicesShareOneConfig(t *testing.T) {
	s := newSpreadReconciler(Config{Ports: spread.DefaultPorts}, func() {})
	configs := configsFor(map[string][]string{"eth0": {"192.0.2.2:51820"}, "eth1": {"198.51.100.2:51820", "198.51.100.1:51820"}})
	if all := s.merged(configs); all == nil || len(all.PeerPortRanges) != 3 || all.Device != "eth1" {
		t.Errorf("got %+v, want all peers for eth1, which leads to most", all)
	}
	s.follower = &deviceFollower{wanted: spreader.Config{Device: "eth0"}}
	if all := s.merged(configs); all == nil || len(all.PeerPortRanges) != 3 || all.Device != "eth0" {
		t.Errorf("got %+v, want all peers for eth0, which has a follower", all)
	}
	if all := s.merged(nil); all != nil {
		t.Errorf("without peers: got %+v, want none", all)
	}
}

func TestDeviceRepairsAreCountedOnce(t *testing.T) {
	s := newSpreadReconciler(Config{Ports: spread.DefaultPorts}, func() {})
	wanted := configsFor(map[string][]string{"eth0": {"192.0.2.2:51820"}})["eth0"]
	w := &deviceFollower{wanted: wanted}
	w.repairs.Add(2)
	s.follower = w
	for _, want := range []int{2, 0} {
		var r result
		if err := s.apply(t.Context(), &r, &wanted); err != nil || r.repaired != want || r.changes != want {
			t.Errorf("got %d, of %d changes, want %d: %v", r.repaired, r.changes, want, err)
		}
	}
	w.changeFailed = true // the failed change may have taken effect since
	w.repairs.Add(1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var r result
	if err := s.apply(ctx, &r, &wanted); !errors.Is(err, context.Canceled) || r.repaired != 0 {
		t.Errorf("%d: got error %v, want %v", r.repaired, err, context.Canceled)
	}
}

// TestReplacedProgramsAreNotTakenBack: the agent of another version, which has attached, would do the same.
func TestReplacedProgramsAreNotTakenBack(t *testing.T) {
	s := newSpreadReconciler(Config{Ports: spread.DefaultPorts}, func() {})
	configs := configsFor(map[string][]string{"eth0": {"192.0.2.2:51820"}, "eth1": {"192.0.2.2:51820", "192.0.2.3:51820"}})
	done := make(chan struct{})
	close(done)
	s.follower = &deviceFollower{wanted: configs["eth0"], done: done, err: programs.ErrOtherLayout}
	for _, wanted := range configs {
		if err := s.apply(t.Context(), &result{}, &wanted); !errors.Is(err, programs.ErrOtherLayout) {
			t.Errorf("%s: got error %v, want %v", wanted.Device, err, programs.ErrOtherLayout)
		}
	}
	if err := s.follower.change(t.Context(), configs["eth0"]); !errors.Is(err, programs.ErrOtherLayout) {
		t.Errorf("change: got error %v, want %v", err, programs.ErrOtherLayout)
	}
}

// TestStatusIsKeptWhileTunnelLookupFails: otherwise other nodes would stop spreading for a temporary error.
func TestStatusIsKeptWhileTunnelLookupFails(t *testing.T) {
	s := newSpreadReconciler(Config{Ports: spread.DefaultPorts}, func() {})
	l := reconcileInput{}
	l.announced.Endpoints = append(l.announced.Endpoints, "192.0.2.1:51820")
	if r := s.unchangedResult(l); r.announcement.Gathers || len(r.announcement.Endpoints) > 0 {
		t.Errorf("nothing is attached, but the status is %+v", r.status)
	}
	s.follower = &deviceFollower{wanted: spreader.Config{}}
	if r := s.unchangedResult(l); !r.announcement.Gathers || len(r.announcement.Endpoints) != 1 || r.spread == nil {
		t.Errorf("got %+v, want status.Gathers true, len(status.Endpoints) 1, spread non-nil", r)
	}
}
