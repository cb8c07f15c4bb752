// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/test/expect"
)

func forEachKind(t *testing.T, f func(r *rig, kind hook.Kind)) {
	for _, kind := range []hook.Kind{hook.TCX, hook.Clsact} {
		t.Run(kind.String(), func(t *testing.T) { f(newRig(t), kind) })
	}
}

func TestRedirectedPacketsAreSeen(t *testing.T) {
	forEachKind(t, func(r *rig, kind hook.Kind) {
		r.redirect(kind)
		r.attach(kind)
		for _, to := range []string{remote, remote6, unknown, exempt} {
			r.send(r.pod, to, "permissive "+to)
			r.expectNext("permissive " + to)
		}
		r.expectCounts(programs.GuardClassRemote, 2, 0)
		r.expectCounts(programs.GuardClassUnknown, 1, 0)
		r.expectCounts(programs.GuardClassExempt, 1, 0)

		r.strict(true)
		for _, to := range []string{remote, remote6, unknown} {
			r.send(r.pod, to, "strict")
		}
		for _, to := range []string{exempt, outside, outside6} { // behind the others, if these had left
			r.send(r.pod, to, "strict "+to)
			r.expectNext("strict " + to)
		}
		r.expectCounts(programs.GuardClassRemote, 2, 2)
		r.expectCounts(programs.GuardClassUnknown, 1, 1)
		r.expectCounts(programs.GuardClassExempt, 2, 0)
		beside, tunneled, err := r.guard.Counts()
		expect.NoError(r, err)
		last := beside[programs.GuardClassUnknown].Last
		if last.Address != netip.MustParseAddr(unknown) || last.Device != r.index(r.node, r.uplink) {
			r.Errorf("got the last packet %+v, want one to %s", last, unknown)
		}
		if n := tunneled[programs.GuardClassLocal].Passed; n != 0 {
			r.Errorf("got %d packets of pods in the tunnel, want 0", n)
		}
	})
}

func TestTunneledPacketsAreCounted(t *testing.T) {
	forEachKind(t, func(r *rig, kind hook.Kind) {
		attached := r.attach(kind)
		if i := slices.IndexFunc(attached, func(a Attached) bool { return a.Tunnel }); len(attached) != 2 || i < 0 || attached[i].Name != tunnel {
			r.Errorf("got %+v, want the tunnel and %s", attached, r.uplink)
		}
		r.strict(true)
		for range 3 {
			r.send(r.pod, remote, "in the tunnel")
		}
		r.send(r.pod, remote6, "in the tunnel")
		r.sendFrom(r.node, netip.MustParseAddr("192.0.2.1"), remote, "from the node itself")
		r.send(r.pod, outside, "beside")
		r.expectNext("beside")
		r.expectCounts(programs.GuardClassRemote, 0, 0)
		_, tunneled, err := r.guard.Counts()
		expect.NoError(r, err)
		if n := tunneled[programs.GuardClassLocal].Passed; n != 4 {
			r.Errorf("got %d packets of pods in the tunnel, want 4", n)
		}
	})
}

// TestDevicesOfPodsOnUplinkAreSeen has pods whose device is on the node's uplink, beside the
// node's routing.
func TestDevicesOfPodsOnUplinkAreSeen(t *testing.T) {
	vlan := func(attrs netlink.LinkAttrs, id int) *netlink.Vlan {
		return &netlink.Vlan{LinkAttrs: attrs, VlanId: id}
	}
	for name, add := range map[string]func(parent netlink.LinkAttrs) []netlink.Link{
		"macvlan": func(a netlink.LinkAttrs) []netlink.Link {
			return []netlink.Link{&netlink.Macvlan{LinkAttrs: a, Mode: netlink.MACVLAN_MODE_BRIDGE}}
		},
		"ipvlan": func(a netlink.LinkAttrs) []netlink.Link {
			return []netlink.Link{&netlink.IPVlan{LinkAttrs: a, Mode: netlink.IPVLAN_MODE_L2}}
		},
		"VLAN":         func(a netlink.LinkAttrs) []netlink.Link { return []netlink.Link{vlan(a, 5)} },
		"VLAN in VLAN": func(a netlink.LinkAttrs) []netlink.Link { return []netlink.Link{vlan(a, 5), vlan(a, 6)} },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.movePodTo(add)
			r.attach(hook.Best)
			r.send(r.pod, remote, "permissive")
			r.expectCounts(programs.GuardClassRemote, 1, 0)
			r.strict(true)
			r.send(r.pod, remote, "strict")
			r.expectCounts(programs.GuardClassRemote, 1, 1)
		})
	}
}

// movePodTo gives the pod devices on the node's uplink, or on each other, and lets its packets
// leave by the last of them.
func (r *rig) movePodTo(add func(netlink.LinkAttrs) []netlink.Link) {
	r.Helper()
	names := []string{"onuplink", "onthat"}
	parent, on := r.uplink, r.node
	for i, l := range add(netlink.LinkAttrs{}) {
		err := on.Do(func() error {
			*l.Attrs() = netlink.LinkAttrs{Name: names[i], ParentIndex: r.index(on, parent), TxQLen: -1}
			return netlink.LinkAdd(l)
		})
		if errors.Is(err, unix.EOPNOTSUPP) {
			r.Skipf("needs a kernel with %s devices: %v", l.Type(), err)
		}
		expect.NoError(r, err)
		if on == r.node {
			expect.NoError(r, r.node.Move(names[i], r.pod))
		}
		expect.NoError(r, r.pod.SetUp(names[i], podsMTU))
		parent, on = names[i], r.pod
	}
	mac := r.hardwareAddr(r.other, r.gateway)
	r.do(r.pod, func() error {
		to := netip.MustParseAddr(remote)
		index := r.index(r.pod, parent)
		return errors.Join(
			netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: &net.IPNet{IP: to.AsSlice(), Mask: net.CIDRMask(32, 32)}}),
			netlink.NeighAdd(&netlink.Neigh{LinkIndex: index, IP: to.AsSlice(), HardwareAddr: mac, State: netlink.NUD_PERMANENT}),
		)
	})
}

// TestInnerPacketsOfOverlayAreSeen has a VXLAN device, as flannel and Cilium, and a TUN, without
// an Ethernet header.
func TestInnerPacketsOfOverlayAreSeen(t *testing.T) {
	for name, add := range map[string]func(r *rig, name string){
		"VXLAN": func(r *rig, name string) {
			r.do(r.node, func() error {
				return netlink.LinkAdd(&netlink.Vxlan{
					LinkAttrs: netlink.LinkAttrs{Name: name}, VxlanId: 1, VtepDevIndex: r.index(r.node, r.uplink), Port: 8472, Group: net.IPv4(192, 0, 2, 2),
				})
			})
			expect.NoError(r, r.node.SetUp(name, podsMTU))
			r.do(r.node, func() error {
				return netlink.NeighAdd(&netlink.Neigh{
					LinkIndex: r.index(r.node, name), IP: net.ParseIP(remote), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}, State: netlink.NUD_PERMANENT,
				})
			})
		},
		"TUN": (*rig).addTUN,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			add(r, "overlay")
			expect.NoError(r, r.node.RouteThrough(netip.MustParsePrefix(remote+"/32"), "overlay"))
			r.attach(hook.Best)
			r.send(r.pod, remote, "permissive")
			r.send(r.pod, outside, "behind it")
			r.expectNext("behind it")
			r.expectCounts(programs.GuardClassRemote, 1, 0)
			r.strict(true)
			r.send(r.pod, remote, "strict")
			r.send(r.pod, outside, "behind it")
			r.expectNext("behind it")
			r.expectCounts(programs.GuardClassRemote, 1, 1)
		})
	}
}

// TestHeadersBeyondLinearPartAreRead sends packets of which the kernel keeps one byte in the linear
// part, out of devices with and without an Ethernet header.
func TestHeadersBeyondLinearPartAreRead(t *testing.T) {
	const mtu = 9000 // below a page the kernel keeps all
	r := newRig(t)
	r.addTUN("overlay")
	expect.NoError(t, errors.Join(r.node.SetUp("overlay", mtu), r.node.SetUp(r.uplink, mtu)))
	r.strict(true)
	r.attach(hook.Best)
	ip := make([]byte, 6000)
	copy(ip, []byte{0x45, 0, 6000 >> 8, 6000 & 0xff, 8: 64, 9: unix.IPPROTO_UDP, 12: 10, 13: 1, 15: 5, 16: 10, 17: 2, 19: 5})
	r.sendScattered("overlay", ip)
	r.expectCounts(programs.GuardClassRemote, 0, 1)
	r.sendScattered(r.uplink, append([]byte{12: 0x08, 13: 0x00}, ip...))
	r.expectCounts(programs.GuardClassRemote, 0, 2)
}

// sendScattered sends a frame out of a device of the node.
func (r *rig) sendScattered(device string, frame []byte) {
	r.Helper()
	index := r.index(r.node, device)
	r.do(r.node, func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
			return err
		}
		header := []byte{2: 1, 9: 0} // struct virtio_net_hdr with hdr_len 1
		err = unix.Sendto(fd, append(header, frame...), 0, &unix.SockaddrLinklayer{Ifindex: index, Protocol: 0x0008})
		if errors.Is(err, unix.ENOBUFS) { // the kernel reports a drop so
			return nil
		}
		return err
	})
}

func TestGuardOutlivesItsProcess(t *testing.T) {
	forEachKind(t, func(r *rig, kind hook.Kind) {
		r.redirect(kind)
		r.attach(kind)
		r.strict(true)
		expect.NoError(r, r.guard.Close()) // as the end of the process does
		r.send(r.pod, remote, "strict")
		r.send(r.pod, outside, "without a process")
		r.expectNext("without a process")

		r.open()
		if strict, err := r.guard.Strict(); err != nil || !strict {
			r.Errorf("got strict %v, error %v, want true", strict, err)
		}
		r.expectCounts(programs.GuardClassRemote, 0, 1)
		r.attach(kind)
		r.send(r.pod, remote, "strict")
		r.send(r.pod, outside, "with the next process")
		r.expectNext("with the next process")
		r.expectCounts(programs.GuardClassRemote, 0, 2)
	})
}

func TestGuardReturnsToFront(t *testing.T) {
	forEachKind(t, func(r *rig, kind hook.Kind) {
		r.redirect(kind)
		r.attach(kind)
		r.acceptAll(kind)
		r.strict(true)
		r.send(r.pod, remote, "behind another program")
		r.expectNext("behind another program")
		for range 2 { // again, without a change
			for _, a := range r.attach(kind) {
				if len(a.Behind) > 0 || a.Kind != kind {
					r.Errorf("got %+v, want kind %v and nothing in front", a, kind)
				}
			}
		}
		r.send(r.pod, remote, "strict")
		r.send(r.pod, outside, "in front")
		r.expectNext("in front")
		r.expectCounts(programs.GuardClassRemote, 0, 1)
	})
}

// TestProgramsInFrontAreNamed has a tcx program, which a filter cannot precede.
func TestProgramsInFrontAreNamed(t *testing.T) {
	r := newRig(t)
	r.acceptAll(hook.TCX)
	attached := r.attach(hook.Clsact)
	i := slices.IndexFunc(attached, func(a Attached) bool { return a.Name == r.uplink })
	if i < 0 || len(attached[i].Behind) != 1 || !strings.Contains(attached[i].Behind[0], "tcx") {
		r.Errorf("got %+v, want %s behind a tcx program", attached, r.uplink)
	}
}

func TestPresentProgramsStay(t *testing.T) {
	forEachKind(t, func(r *rig, kind hook.Kind) {
		r.attach(kind)
		before := r.status(kind)
		r.attach(kind)
		if after := r.status(kind); after != before {
			r.Errorf("got %+v, want %+v", after, before)
		}
		expect.NoError(r, r.guard.Close())
		r.open()
		r.attach(kind)
		if after := r.status(kind); after.Program == before.Program || after.State != hook.Attached {
			r.Errorf("got %+v, want another program than %+v", after, before)
		}
	})
}

// status is that of the program at the uplink.
func (r *rig) status(kind hook.Kind) (st hook.Status) {
	r.Helper()
	index := r.index(r.node, r.uplink)
	r.do(r.node, func() (err error) {
		st, err = r.guard.pins.hook(index, kind).Status()
		return err
	})
	return st
}

func TestRemoveLeavesNothing(t *testing.T) {
	forEachKind(t, func(r *rig, kind hook.Kind) {
		r.redirect(hook.Best)
		r.strict(true)
		r.attach(kind)
		gone := "gone"
		r.addTUN(gone)
		r.attach(kind)
		r.do(r.node, func() error {
			l, err := netlink.LinkByName(gone)
			return errors.Join(err, netlink.LinkDel(l))
		})
		with := len(r.pins())
		r.attach(kind)
		if without := len(r.pins()); without >= with {
			r.Errorf("got %d pins after a device was removed, and %d before", without, with)
		}
		r.do(r.node, func() error { return errors.Join(Remove(r.fs), Remove(r.fs)) })
		for _, p := range r.pins() {
			if !strings.HasPrefix(p, "/foreign") {
				r.Errorf("got the pin %s, want none", p)
			}
		}
		r.send(r.pod, remote, "removed")
		r.expectNext("removed")
		r.do(r.node, func() error {
			l, err := netlink.LinkByName(r.uplink)
			expect.NoError(r, err)
			qdiscs, err := netlink.QdiscList(l)
			if slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == "clsact" }) {
				r.Error("a clsact qdisc was not removed")
			}
			return err
		})
	})
}

// TestFewCapabilitiesSuffice does everything as an agent in a pod does.
func TestFewCapabilitiesSuffice(t *testing.T) {
	forEachKind(t, func(r *rig, kind hook.Kind) {
		r.attach(kind) // which skips without support
		r.do(r.node, func() error { return Remove(r.fs) })
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // for good: the thread ends with the goroutine
			done <- r.node.Do(func() error { return attachWithFewCapabilities(r, kind) })
		}()
		expect.NoError(r, <-done)
		r.redirect(hook.Best)
		r.send(r.pod, remote, "strict")
		r.send(r.pod, outside, "behind it")
		r.expectNext("behind it")
	})
}

func attachWithFewCapabilities(r *rig, kind hook.Kind) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var few [2]unix.CapUserData
	for _, c := range []int{unix.CAP_BPF, unix.CAP_NET_ADMIN} {
		few[c/32].Effective |= 1 << (c % 32)
	}
	few[0].Permitted, few[1].Permitted = few[0].Effective, few[1].Effective
	if err := unix.Capset(&header, &few[0]); err != nil {
		return err
	}
	for range 2 { // the second one replaces the programs of the first
		g, err := Open(r.fs)
		if err != nil {
			return err
		}
		g.kind = kind
		err = errors.Join(g.SetPrefixes(classes()), g.SetStrict(true))
		_, attachErr := g.Attach(tunnel)
		if err := errors.Join(err, attachErr, g.Close()); err != nil {
			return err
		}
	}
	return nil
}
