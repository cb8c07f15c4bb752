// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

const (
	tunnel   = "ropewalk0"
	port     = 7000
	podsMTU  = 1400
	outside  = "10.9.0.5" // of the other node, in no prefix
	outside6 = "fd09::5"
	remote   = "10.2.0.5"
	remote6  = "fd02::5"
	unknown  = "10.3.0.5"
	exempt   = "10.4.0.5"
)

// classes are those of a cluster with the pods of three nodes.
func classes() map[netip.Prefix]programs.GuardClass {
	return map[netip.Prefix]programs.GuardClass{
		netip.MustParsePrefix("10.0.0.0/13"): programs.GuardClassUnknown,
		netip.MustParsePrefix("10.1.0.0/16"): programs.GuardClassLocal, netip.MustParsePrefix("fd01::/64"): programs.GuardClassLocal,
		netip.MustParsePrefix("10.2.0.0/16"): programs.GuardClassRemote, netip.MustParsePrefix("fd02::/64"): programs.GuardClassRemote,
		netip.MustParsePrefix("10.4.0.0/16"): programs.GuardClassExempt,
	}
}

// rig is a pod, its node, and another node with all addresses beyond. The routes lead through a
// tunnel, which carries nothing. The node is a container: its uplink is a veth device.
type rig struct {
	*testing.T
	pod, node, other *netlab.Host
	podEnd, uplink   string // devices of the node
	gateway          string // the other node's device
	fs               string
	guard            *Guard
	receiver         *net.UDPConn // of the other node
}

func newRig(t *testing.T) *rig {
	t.Helper()
	lab, err := netlab.New("guard")
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, lab.Close()) })
	r := &rig{T: t, fs: t.TempDir()}
	if err := unix.Mount("bpf", r.fs, "bpf", 0, ""); err != nil {
		t.Skipf("needs root and a kernel with a BPF file system: %v", err)
	}
	t.Cleanup(func() { expect.NoError(t, unix.Unmount(r.fs, unix.MNT_DETACH)) })
	for name, h := range map[string]**netlab.Host{"pod": &r.pod, "node": &r.node, "other": &r.other} {
		*h, err = lab.Host(name)
		expect.NoError(t, err)
	}
	r.connect(lab)
	r.addTunnel()
	r.do(r.other, func() error {
		c, err := net.ListenUDP("udp", &net.UDPAddr{Port: port})
		r.receiver = c
		return err
	})
	t.Cleanup(func() { r.receiver.Close() })
	r.open()
	return r
}

func addresses(list ...string) (all []netip.Prefix) {
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

func (r *rig) connect(lab *netlab.Lab) {
	r.Helper()
	inner, err := lab.Cable(r.pod, r.node, netlab.CableConfig{
		AddrsA: addresses("10.1.0.5/24", "fd01::5/64"), AddrsB: addresses("10.1.0.1/32", "fd01::1/128"),
	})
	expect.NoError(r, err)
	beyond := addresses("192.0.2.2/24", "2001:db8::2/64")
	for _, a := range []string{outside, remote, unknown, exempt, outside6, remote6} {
		p := netip.MustParseAddr(a)
		beyond = append(beyond, netip.PrefixFrom(p, p.BitLen()))
	}
	outer, err := lab.Cable(r.node, r.other, netlab.CableConfig{AddrsA: addresses("192.0.2.1/24", "2001:db8::1/64"), AddrsB: beyond})
	expect.NoError(r, err)
	r.podEnd, r.uplink, r.gateway = inner.DeviceB, outer.DeviceA, outer.DeviceB
	expect.NoError(r, errors.Join(
		r.node.Forward(),
		r.pod.RouteVia(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("10.1.0.1")),
		r.pod.RouteVia(netip.MustParsePrefix("::/0"), netip.MustParseAddr("fd01::1")),
		r.node.RouteThrough(netip.MustParsePrefix("10.1.0.0/24"), r.podEnd),
		r.node.RouteThrough(netip.MustParsePrefix("fd01::/64"), r.podEnd),
		r.node.RouteVia(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("192.0.2.2")),
		r.node.RouteVia(netip.MustParsePrefix("::/0"), netip.MustParseAddr("2001:db8::2")),
		r.other.RouteVia(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("192.0.2.1")),
		r.other.RouteVia(netip.MustParsePrefix("::/0"), netip.MustParseAddr("2001:db8::1")),
	))
}

// addTunnel adds a TUN that discards, with the routes to the pods of other nodes.
func (r *rig) addTunnel() {
	r.Helper()
	r.addTUN(tunnel)
	expect.NoError(r, errors.Join(
		r.node.RouteThrough(netip.MustParsePrefix("10.2.0.0/16"), tunnel), r.node.RouteThrough(netip.MustParsePrefix("fd02::/64"), tunnel),
	))
}

func (r *rig) addTUN(name string) {
	r.Helper()
	r.do(r.node, func() error {
		tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TUN, NonPersist: true, Queues: 1}
		if err := netlink.LinkAdd(tun); err != nil {
			return err
		}
		for _, f := range tun.Fds {
			r.Cleanup(func() { f.Close() })
		}
		return nil
	})
	expect.NoError(r, r.node.SetUp(name, podsMTU))
}

func (r *rig) do(h *netlab.Host, f func() error) {
	r.Helper()
	expect.NoError(r, h.Do(f))
}

// open opens a guard on the node with the cluster's prefixes.
func (r *rig) open() {
	r.Helper()
	r.do(r.node, func() (err error) {
		r.guard, err = Open(r.fs)
		return err
	})
	g := r.guard
	r.Cleanup(func() { _ = g.Close() }) // or the test has closed it
	expect.NoError(r, g.SetPrefixes(classes()))
}

// attach attaches the guard, and skips the test if the kernel does not support the kind.
func (r *rig) attach(kind hook.Kind) (attached []Attached) {
	r.Helper()
	r.guard.kind = kind
	err := r.node.Do(func() (err error) {
		attached, err = r.guard.Attach(tunnel)
		return err
	})
	if kind == hook.TCX && errors.Is(err, ebpf.ErrNotSupported) {
		r.Skipf("needs Linux 6.6: %v", err)
	}
	expect.NoError(r, err)
	return attached
}

func (r *rig) strict(strict bool) {
	r.Helper()
	expect.NoError(r, r.guard.SetStrict(strict))
}

func (r *rig) index(h *netlab.Host, device string) (index int) {
	r.Helper()
	r.do(h, func() error {
		l, err := netlink.LinkByName(device)
		if err == nil {
			index = l.Attrs().Index
		}
		return err
	})
	return index
}

func (r *rig) hardwareAddr(h *netlab.Host, device string) (mac net.HardwareAddr) {
	r.Helper()
	r.do(h, func() error {
		l, err := netlink.LinkByName(device)
		if err == nil {
			mac = l.Attrs().HardwareAddr
		}
		return err
	})
	return mac
}

// redirect attaches a program to the pod's device that sends the pod's datagrams through the
// uplink, whatever the routes say. Cilium's BPF host routing does the same, by bpf_redirect_neigh
// (here for IPv4), or by bpf_redirect with the next hop's MAC address (here for IPv6).
func (r *rig) redirect(kind hook.Kind) {
	r.Helper()
	const protocol = 16 // offset in struct __sk_buff
	uplink, mac := int32(r.index(r.node, r.uplink)), r.hardwareAddr(r.other, r.gateway)
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "redirect", Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, protocol, asm.Word),
		asm.JEq.Imm(asm.R2, 0xdd86, "v6"),
		asm.JNE.Imm(asm.R2, 0x0008, "out"),
		asm.LoadAbs(14+9, asm.Byte),
		asm.JNE.Imm(asm.R0, unix.IPPROTO_UDP, "out"),
		asm.Mov.Imm(asm.R1, uplink),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Imm(asm.R3, 0),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRedirectNeigh.Call(),
		asm.Return(),
		asm.LoadAbs(14+6, asm.Byte).WithSymbol("v6"),
		asm.JNE.Imm(asm.R0, unix.IPPROTO_UDP, "out"),
		asm.StoreImm(asm.RFP, -8, int64(int32(binary.LittleEndian.Uint32(mac))), asm.Word),
		asm.StoreImm(asm.RFP, -4, int64(binary.LittleEndian.Uint16(mac[4:])), asm.Half),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, -8),
		asm.Mov.Imm(asm.R4, 6),
		asm.Mov.Imm(asm.R5, 0),
		asm.FnSkbStoreBytes.Call(),
		asm.Mov.Imm(asm.R1, uplink),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("out"),
		asm.Return(),
	}})
	expect.NoError(r, err)
	r.Cleanup(func() { p.Close() })
	r.put(hook.Hook{Device: r.index(r.node, r.podEnd), AttachPoint: hook.Ingress, Kind: kind}, p)
}

// acceptAll attaches a program in front of those at the uplink that ends the processing of each
// packet, as Cilium's does.
func (r *rig) acceptAll(kind hook.Kind) {
	r.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "accept", Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R0, 0), // TC_ACT_OK
		asm.Return(),
	}})
	expect.NoError(r, err)
	r.Cleanup(func() { p.Close() })
	index := r.index(r.node, r.uplink)
	if kind == hook.TCX {
		r.put(hook.Hook{Device: index, AttachPoint: hook.Egress, Kind: kind}, p)
		return
	}
	r.do(r.node, func() error {
		return netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL},
			Fd:          p.FD(), Name: "foreign", DirectAction: true,
		})
	})
}

// put attaches another program's program.
func (r *rig) put(h hook.Hook, p *ebpf.Program) {
	r.Helper()
	h.Name, h.Pin, h.QdiscPin = "foreign", filepath.Join(r.fs, "foreign_"+h.AttachPoint.String()), filepath.Join(r.fs, "foreign_qdisc_"+h.AttachPoint.String())
	err := r.node.Do(func() error { return h.Attach(p) })
	if h.Kind == hook.TCX && errors.Is(err, ebpf.ErrNotSupported) {
		r.Skipf("needs Linux 6.6: %v", err)
	}
	expect.NoError(r, err)
}

// send sends a datagram from a host.
func (r *rig) send(from *netlab.Host, to, text string) {
	r.Helper()
	r.sendFrom(from, netip.Addr{}, to, text)
}

// sendFrom is send with a source address.
func (r *rig) sendFrom(from *netlab.Host, source netip.Addr, to, text string) {
	r.Helper()
	var local *net.UDPAddr
	if source.IsValid() {
		local = net.UDPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	r.do(from, func() error {
		c, err := net.DialUDP("udp", local, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(to), port)))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte(text))
		return err
	})
}

// expectNext fails unless that is the next datagram that the other node receives.
func (r *rig) expectNext(text string) {
	r.Helper()
	expect.NoError(r, r.receiver.SetReadDeadline(time.Now().Add(time.Minute)))
	b := make([]byte, 100)
	n, _, err := r.receiver.ReadFromUDPAddrPort(b)
	expect.NoError(r, err)
	if got := string(b[:n]); got != text {
		r.Fatalf("received %q, want %q", got, text)
	}
}

// expectCounts fails unless so many packets of a class left the node beside the tunnel, or were
// dropped.
func (r *rig) expectCounts(class programs.GuardClass, passed, dropped uint64) {
	r.Helper()
	beside, _, err := r.guard.Counts()
	expect.NoError(r, err)
	if got := beside[class]; got.Passed != passed || got.Dropped != dropped {
		r.Errorf("%v: got %d passed, %d dropped, want %d and %d", class, got.Passed, got.Dropped, passed, dropped)
	}
}

// pins returns all paths in the BPF file system.
func (r *rig) pins() (paths []string) {
	r.Helper()
	expect.NoError(r, filepath.WalkDir(r.fs, func(path string, d fs.DirEntry, err error) error {
		if !strings.Contains(d.Name(), ".") && path != r.fs { // files of the kernel have a dot
			paths = append(paths, strings.TrimPrefix(path, r.fs))
		}
		return err
	}))
	return paths
}
