// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestAsymmetricUplinksAreGatheredAndAnswered has two uplinks between hosts with addresses of their own, as with BGP on the host. Here sends by
// the first and there by the second one. Each attaches to the device that its route names.
func TestAsymmetricUplinksAreGatheredAndAnswered(t *testing.T) {
	r := newUnpluggedRig(t)
	prefix := netip.MustParsePrefix
	for _, s := range []*side{r.here, r.there} {
		s.do(func() error { return hostnet.AddAddress("lo", netip.PrefixFrom(s.addr, 32)) })
	}
	var cables []*netlab.Cable
	for _, net := range []string{"10.1.0.", "10.2.0."} {
		c, err := r.lab.Cable(r.here.lab, r.there.lab, netlab.CableConfig{
			Queues: 4, AddrsA: []netip.Prefix{prefix(net + "1/24")}, AddrsB: []netip.Prefix{prefix(net + "2/24")},
		})
		expect.NoError(t, err)
		cables = append(cables, c)
	}
	expect.NoError(t, r.here.lab.RouteVia(netip.PrefixFrom(thereAddr, 32), netip.MustParseAddr("10.1.0.2")))
	expect.NoError(t, r.there.lab.RouteVia(netip.PrefixFrom(hereAddr, 32), netip.MustParseAddr("10.2.0.1")))
	r.here.device, r.there.device = cables[0].DeviceA, cables[1].DeviceB
	other := map[*side]string{r.here: cables[1].DeviceA, r.there: cables[0].DeviceB}
	r.attachBoth(func(s *side) []string { return []string{other[s]} })
	r.gathersAll()
	r.here.detach(0)
	r.there.detach(0)
	if pins := r.pins(); len(pins) > 0 {
		t.Errorf("pins left: %q", pins)
	}
}

// TestVLANCountsEachMessageOnce has a tunnel over a VLAN whose parent has an address, and so the programs, too.
func TestVLANCountsEachMessageOnce(t *testing.T) {
	r := newUnpluggedRig(t)
	prefix := netip.MustParsePrefix
	c, err := r.lab.Cable(r.here.lab, r.there.lab, netlab.CableConfig{AddrsA: []netip.Prefix{prefix("10.1.0.1/24")}, AddrsB: []netip.Prefix{prefix("10.1.0.2/24")}})
	expect.NoError(t, err)
	parents := map[*side]string{r.here: c.DeviceA, r.there: c.DeviceB}
	for s, parent := range parents {
		s.device = parent
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "vlan.7"
		s.addLink(&netlink.Vlan{LinkAttrs: attrs, VlanId: 7}, netip.PrefixFrom(s.addr, 24).String())
		s.device = "vlan.7"
	}
	r.attachBoth(func(s *side) []string { return []string{parents[s]} })
	sent := r.gathersAll()
	if n := r.here.count(programs.EventSpread) + r.here.count(programs.EventUnproven) + r.here.count(programs.EventPortBlocked); n != sent {
		t.Errorf("%d messages were sent, and %d counted", sent, n)
	}
	for s, parent := range parents {
		s.device = parent
		st := s.status()
		for _, n := range st.Counters {
			if n.Count > 0 {
				t.Errorf("the parent counts, too: %+v", n)
			}
		}
		if len(st.Queues) > 0 {
			t.Errorf("the parent's queues have %d", st.Queues)
		}
	}
}

// TestBondGathersAll has a bond of two cables, whose messages take them in turn.
func TestBondGathersAll(t *testing.T) {
	r := newUnpluggedRig(t)
	var devices [2][2]string
	for i := range devices {
		c, err := r.lab.Cable(r.here.lab, r.there.lab, netlab.CableConfig{})
		expect.NoError(t, err)
		devices[i] = [2]string{c.DeviceA, c.DeviceB}
	}
	for end, s := range []*side{r.here, r.there} {
		s.bond("bond0", devices[0][end], devices[1][end])
		s.device = "bond0"
	}
	r.attachBoth(func(*side) []string { return nil })
	r.gathersAll()
}

// TestPartIsRefusedAndLosesPrograms has a device that is attached, and becomes a member of a bond or a port of a bridge: each message passes both.
func TestPartIsRefusedAndLosesPrograms(t *testing.T) {
	for kind, combine := range map[string]func(s *side, name string, members ...string){"bond": (*side).bond, "bridge": (*side).bridge} {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t)
			for _, s := range []*side{r.here, r.there} {
				s.attach(s.config())
				combine(s, "both0", s.device)
				if _, err := s.try(s.config()); err == nil || !strings.Contains(err.Error(), "cable.7 is part of both0") {
					t.Errorf("attaching to the part: got error %v", err)
				}
				s.device = "both0"
			}
			r.attachBoth(func(*side) []string { return nil })
			r.gathersAll()
			r.here.device = "cable.7"
			if st := r.here.status(); st != nil {
				t.Errorf("the part has the programs still: %+v", st)
			}
		})
	}
}

// bridge makes a bridge of devices, with the side's address.
func (s *side) bridge(name string, ports ...string) {
	s.r.Helper()
	s.do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		b := &netlink.Bridge{LinkAttrs: attrs}
		if err := netlink.LinkAdd(b); err != nil {
			return err
		}
		for _, name := range ports {
			l, err := netlink.LinkByName(name)
			if err := errors.Join(err, netlink.LinkSetDown(l), netlink.LinkSetMaster(l, b), netlink.LinkSetUp(l)); err != nil {
				return err
			}
			if err := hostnet.RemoveAddress(name, netip.PrefixFrom(s.addr, 24)); err != nil {
				return err
			}
		}
		return nil
	})
	expect.NoError(s.r, s.lab.SetUp(name, 1500, netip.PrefixFrom(s.addr, 24)))
}

// bond makes a bond of devices, with the side's address.
func (s *side) bond(name string, members ...string) {
	s.r.Helper()
	var unable error
	s.do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		b := netlink.NewLinkBond(attrs)
		b.Mode = netlink.BOND_MODE_BALANCE_RR
		if unable = netlink.LinkAdd(b); unable != nil {
			return nil
		}
		for _, name := range members {
			l, err := netlink.LinkByName(name)
			if err := errors.Join(err, netlink.LinkSetDown(l), netlink.LinkSetMaster(l, b)); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(unable, unix.EOPNOTSUPP) {
		s.r.Skip("needs a kernel with bonding")
	}
	expect.NoError(s.r, errors.Join(unable, s.lab.SetUp(name, 1500, netip.PrefixFrom(s.addr, 24))))
}

// attachBoth gives both tunnels each other as a peer, and attaches them. others returns the further devices that a side has.
func (r *rig) attachBoth(others func(*side) []string) {
	r.Helper()
	r.here.finder.set(wg(netip.AddrPortFrom(thereAddr, port).String()))
	r.there.finder.set(wg(netip.AddrPortFrom(hereAddr, port).String()))
	for _, s := range []*side{r.here, r.there} {
		cfg := s.config()
		cfg.Lanes = flows
		if report := s.attach(cfg); !slices.Equal(report.AlsoOn, others(s)) {
			r.Fatalf("got report %+v, want AlsoOn %s", report, others(s))
		}
	}
}

// gathersAll proves the source ports, and fails unless 200 of 200 messages are then spread and gathered. It returns the number of all messages.
func (r *rig) gathersAll() (sent uint64) {
	r.Helper()
	senders, receiver := r.senders(), r.there.socket(port)
	sent = r.prove(senders, receiver) + 200
	before := r.here.count(programs.EventSpread)
	for n := range 200 {
		_, err := senders[n%flows].WriteToUDPAddrPort(message(n%flows, n), netip.AddrPortFrom(thereAddr, port))
		expect.NoError(r, err)
		if a := r.receive(receiver); a.from.Port() != port {
			r.Errorf("message %d came from %v", n, a.from)
		}
	}
	if spread := r.here.count(programs.EventSpread) - before; spread != 200 {
		r.Errorf("%d of 200 messages were spread", spread)
	}
	return sent
}

// another connects here to a further host, and returns the name of its device.
func (r *rig) another(name, address string) string {
	r.Helper()
	host, err := r.lab.Host(name)
	expect.NoError(r, err)
	c, err := r.lab.Cable(host, r.here.lab, netlab.CableConfig{AddrsB: []netip.Prefix{netip.MustParsePrefix(address)}})
	expect.NoError(r, err)
	return c.DeviceB
}

// countLoads counts how often here loads the programs. It refuses those whose number is named.
func (r *rig) countLoads(refused int32) *atomic.Int32 {
	loads := new(atomic.Int32)
	r.here.host.beforeStep = func(name string) error {
		if name == "load" && loads.Add(1) == refused {
			return errors.New("refused")
		}
		return nil
	}
	return loads
}

// TestGatewaysOfPodsAreNoReceivers has the devices of the CNI plugin ptp: the host's end of each pod's veth has the same address.
func TestGatewaysOfPodsAreNoReceivers(t *testing.T) {
	r := newRig(t)
	r.another("pod1", "10.1.0.1/32")
	r.another("pod2", "10.1.0.1/32")
	if report := r.here.attach(r.here.config()); len(report.AlsoOn) > 0 {
		t.Errorf("got AlsoOn %q, want none", report.AlsoOn)
	}
}

func TestNewDeviceLoadsNoOthersAgain(t *testing.T) {
	r := newRig(t)
	first := r.another("first", "10.1.0.1/24")
	loads := r.countLoads(0)
	reports, _, stop := r.here.watch(50 * time.Millisecond)
	r.next(reports)
	before := loads.Load()
	second := r.another("second", "10.2.0.1/24")
	if report := r.next(reports); !slices.Equal(report.AlsoOn, []string{first, second}) || report.Spread == "" || report.Gather == "none" {
		t.Errorf("got report %+v, want AlsoOn %s and %s, and the hooks", report, first, second)
	}
	stop()
	if n := loads.Load() - before; n != 1 {
		t.Errorf("the programs were loaded %d times for the new device, want 1", n)
	}
	r.here.attach(r.here.config())
	if n := loads.Load() - before; n != 4 {
		t.Errorf("another attach loaded %d times, want 3: it replaces all", n-1)
	}
}

// TestTunnelsKeepGatherOfOtherDevices has two tunnels, each attached to a device of its own.
func TestTunnelsKeepGatherOfOtherDevices(t *testing.T) {
	r := newRig(t)
	other, cfg := r.another("other", "10.1.0.1/24"), r.here.config()
	cfg.Gather = GatherXDP
	r.here.attach(cfg)
	kind := r.here.status().Gather.Kind
	second := wg("10.1.0.2:51821")
	second.Name, second.Port = "wg1", 51821
	r.here.finder.set(wg(netip.AddrPortFrom(thereAddr, port).String()), second)
	r.here.attach(Config{Device: other, Port: 51821, Ports: spread.Ports{First: 62000, Last: 62100}})
	if st := r.here.status(); kind != "xdp" || st.Gather.Kind != kind || len(st.Problems) > 0 {
		t.Errorf("got gather %s, then %+v with problems %q, want xdp", kind, st.Gather, st.Problems)
	}
}

// TestRefusedDeviceIsNotTriedAtEachPoll has a second device that cannot have the programs. To load them for it takes long.
func TestRefusedDeviceIsNotTriedAtEachPoll(t *testing.T) {
	r := newRig(t)
	other := r.another("other", "10.1.0.1/24")
	loads := r.countLoads(2)
	reports, _, stop := r.here.watch(50 * time.Millisecond)
	for _, peers := range []Tunnel{wg("192.0.2.2:51820", "198.51.100.7:4000"), wg("192.0.2.2:51820")} {
		report := r.next(reports)
		if len(report.AlsoOn) > 0 || !slices.Equal(report.NotOn, []string{other}) || !strings.Contains(strings.Join(report.Warnings, "\n"), other) {
			t.Errorf("got report %+v, want a warning, and NotOn %s", report, other)
		}
		r.here.finder.set(peers)
	}
	stop()
	if n := loads.Load(); n != 2 {
		t.Errorf("the programs were loaded %d times, want 2", n)
	}
	r.here.detach(0)
	r.here.clean()
}

func TestRefusedDeviceIsTriedAgainLater(t *testing.T) {
	r := newRig(t)
	other := r.another("other", "10.1.0.1/24")
	loads := r.countLoads(2)
	r.here.host.refusedPause = time.Nanosecond
	reports, _, stop := r.here.watch(50 * time.Millisecond)
	r.next(reports)
	if report := r.next(reports); !slices.Equal(report.AlsoOn, []string{other}) || len(report.NotOn) > 0 {
		t.Errorf("got report %+v, want AlsoOn %s", report, other)
	}
	stop()
	if n := loads.Load(); n != 3 {
		t.Errorf("the programs were loaded %d times, want 3", n)
	}
}
