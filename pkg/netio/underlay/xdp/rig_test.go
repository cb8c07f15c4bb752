// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/test/expect"
)

// deadline bounds every wait.
const deadline = 20 * time.Second

// pair is two hosts with a cable between them.
type pair struct {
	testing.TB
	lab   *netlab.Lab
	hosts [2]*netlab.Host
	devs  [2]string
	queue int
}

// The addresses of the two ends.
var (
	addrs4 = [2]netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("192.0.2.2/24")}
	addrs6 = [2]netip.Prefix{netip.MustParsePrefix("2001:db8::1/64"), netip.MustParsePrefix("2001:db8::2/64")}
)

func newPair(t testing.TB, queues int) *pair {
	t.Helper()
	requireXDP(t)
	lab, hosts := netlabtest.Hosts(t, "xdp", "a", "b")
	p := &pair{TB: t, lab: lab, hosts: [2]*netlab.Host(hosts), queue: queues}
	for _, h := range hosts {
		// The device's address messages come long after it is up; wait for them.
		expect.NoError(t, h.Do(func() error {
			return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0)
		}))
	}
	c, err := lab.Cable(p.hosts[0], p.hosts[1], netlab.CableConfig{
		Queues: queues, MTU: 1500,
		AddrsA: []netip.Prefix{addrs4[0], addrs6[0]}, AddrsB: []netip.Prefix{addrs4[1], addrs6[1]},
	})
	expect.NoError(t, err)
	p.devs = [2]string{c.DeviceA, c.DeviceB}
	return p
}

func requireXDP(t testing.TB) {
	t.Helper()
	netlabtest.NeedAFXDP(t)
	expect.NoError(t, rlimit.RemoveMemlock())
}

// polled is a UDP port in the namespace of one end.
type polled struct {
	*udp.Port
	host *netlab.Host
}

// OpenSource opens the source in the port's namespace, whichever thread calls it.
func (p *polled) OpenSource(port uint16) (source int, err error) {
	err = p.host.Do(func() (err error) {
		source, err = p.Port.OpenSource(port)
		return err
	})
	return source, err
}

// openUDP opens the slow path at one end.
func (p *pair) openUDP(end int, c udp.Config) *polled {
	p.Helper()
	u := &polled{host: p.hosts[end]}
	expect.NoError(p.TB, p.hosts[end].Do(func() (err error) {
		u.Port, err = udp.Open(c)
		return err
	}))
	p.Cleanup(func() { _ = u.Close() })
	return u
}

// open opens a port at one end.
func (p *pair) open(end int, u *polled, program Program, c Config) *Port {
	p.Helper()
	c.UDP, c.Program, c.Device = u, program, p.devs[end]
	var port *Port
	expect.NoError(p.TB, p.hosts[end].Do(func() (err error) {
		port, err = Open(c)
		return err
	}))
	p.Cleanup(func() { expect.NoError(p.TB, port.Close()) })
	return port
}

// endpoint returns the endpoint of the other end.
func (p *pair) endpoint(end int, port underlay.Port, ipv6 bool) underlay.Endpoint {
	addr := addrs4[end].Addr()
	if ipv6 {
		addr = addrs6[end].Addr()
	}
	return underlay.Endpoint{Dst: netip.AddrPortFrom(addr, port.LocalPort())}
}

// awaitXDP waits until datagrams to an endpoint use AF_XDP. It requests the path until then.
func awaitXDP(t testing.TB, p *Port, to *underlay.Endpoint) {
	t.Helper()
	awaitReason(t, p, to, ViaXDP)
}

// present returns the path that lanes use to a target.
func (t *table) present(to target) *path {
	for {
		if p := t.find(to).path.Load(); p != nil { // else it was removed just now
			return p
		}
	}
}

func awaitReason(t testing.TB, p *Port, to *underlay.Endpoint, want Reason) {
	t.Helper()
	key, tries := targetOf(to), 0
	expect.EventuallyNoError(t, fmt.Sprintf("%v goes by %v", to.Dst, want), func() error {
		last := p.table.present(key).reason
		if last == want {
			return nil
		}
		if last == NoNeighbour && tries%8 == 0 {
			// A run through the UDP socket would do the same. It is not sent in every round: the kernel queues
			// datagrams to an unresolved neighbour, and they would fill the receive buffer at the other end.
			_ = p.SendTo(to, nil)
		}
		tries++
		return fmt.Errorf("it goes by %v: %+v", last, p.Status())
	})
}

// redirectAll is an XDP program that redirects all datagrams for a port to the sockets, whatever they contain.
type redirectAll struct {
	xsks     *ebpf.Map
	program  *ebpf.Program
	attached link.Link
}

func newRedirectAll(t testing.TB, port uint16) *redirectAll {
	t.Helper()
	xsks, err := ebpf.NewMap(&ebpf.MapSpec{Name: "test_xsks", Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: 16})
	if errors.Is(err, unix.EPERM) {
		t.Skipf("needs CAP_BPF: %v", err)
	}
	expect.NoError(t, err)
	t.Cleanup(func() { xsks.Close() })
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "test_everything", Type: ebpf.XDP, License: "GPL", Instructions: redirectAllProgram(xsks.FD(), port),
	})
	expect.NoError(t, err)
	t.Cleanup(func() { program.Close() })
	return &redirectAll{xsks: xsks, program: program}
}

func (r *redirectAll) Attach(device int) (err error) {
	r.attached, err = link.AttachXDP(link.XDPOptions{Program: r.program, Interface: device, Flags: link.XDPDriverMode})
	return err
}

func (r *redirectAll) Detach() error { return r.attached.Close() }

func (r *redirectAll) SetSocket(queue, fd int) error {
	return r.xsks.Update(uint32(queue), uint32(fd), ebpf.UpdateAny)
}

func (r *redirectAll) RemoveSocket(queue int) error {
	if err := r.xsks.Delete(uint32(queue)); !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

func (r *redirectAll) SetAddresses([]netip.Addr) error { return nil }

func (r *redirectAll) AddSourcePort(uint16) error { return nil }

func (r *redirectAll) Close() error { return nil } // the test closes it

// redirectAllProgram redirects unfragmented UDP packets to a port that fit into a frame, with at most one VLAN tag.
func redirectAllProgram(xsks int, port uint16) asm.Instructions {
	const pass = 2
	code := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, 0, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, 4, asm.Word),
		asm.Mov.Reg(asm.R5, asm.R3),
		asm.Sub.Reg(asm.R5, asm.R2),
		asm.JGT.Imm(asm.R5, int32(MaxFrame(0)), "pass"),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, 18),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
		asm.LoadMem(asm.R5, asm.R2, 12, asm.Half),
		asm.JEq.Imm(asm.R5, networkOrder(0x8100), "tagged"),
	}
	code = append(code, redirectUDP("plain", 14, port)...)
	code = append(code, asm.LoadMem(asm.R5, asm.R2, 16, asm.Half).WithSymbol("tagged"))
	code = append(code, redirectUDP("vlan", 18, port)...)
	return append(
		code,
		asm.LoadMem(asm.R2, asm.R6, 16, asm.Word).WithSymbol("take"),
		asm.LoadMapPtr(asm.R1, xsks),
		asm.Mov.Imm(asm.R3, pass),
		asm.FnRedirectMap.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, pass).WithSymbol("pass"),
		asm.Return(),
	)
}

// redirectUDP expects the IP header at an offset, and its EtherType in R5.
func redirectUDP(name string, at int16, port uint16) asm.Instructions {
	v6 := name + "6"
	return asm.Instructions{
		asm.JNE.Imm(asm.R5, networkOrder(0x0800), v6),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, int32(at)+28),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
		asm.LoadMem(asm.R4, asm.R2, at, asm.Byte),
		asm.JNE.Imm(asm.R4, 0x45, "pass"),
		asm.LoadMem(asm.R4, asm.R2, at+9, asm.Byte),
		asm.JNE.Imm(asm.R4, unix.IPPROTO_UDP, "pass"),
		asm.LoadMem(asm.R4, asm.R2, at+6, asm.Half),
		asm.And.Imm(asm.R4, networkOrder(0x3fff)),
		asm.JNE.Imm(asm.R4, 0, "pass"),
		asm.LoadMem(asm.R4, asm.R2, at+22, asm.Half),
		asm.JNE.Imm(asm.R4, networkOrder(port), "pass"),
		asm.Ja.Label("take"),
		asm.JNE.Imm(asm.R5, networkOrder(0x86dd), "pass").WithSymbol(v6),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, int32(at)+48),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
		asm.LoadMem(asm.R4, asm.R2, at+6, asm.Byte),
		asm.JNE.Imm(asm.R4, unix.IPPROTO_UDP, "pass"),
		asm.LoadMem(asm.R4, asm.R2, at+42, asm.Half),
		asm.JNE.Imm(asm.R4, networkOrder(port), "pass"),
		asm.Ja.Label("take"),
	}
}

// networkOrder returns v as a native-endian load from a packet gives it.
func networkOrder(v uint16) int32 {
	return int32(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)))
}

// checkFrameBalance fails unless all frames of an idle port's sockets are in their place.
func checkFrameBalance(t testing.TB, p *Port) {
	t.Helper()
	all := make([]xsk.Desc, xsk.DefaultFrames)
	for i, l := range p.lanes {
		c := l.laneSocket.Load()
		if c == nil {
			continue
		}
		expect.Eventually(t, fmt.Sprintf("the frames of lane %d", i), func() bool {
			c.socket.Release(all[:c.socket.Reserve(all)]) // frees the frames that were sent
			return c.socket.Frames().TxKernel == 0
		})
		f := c.socket.Frames()
		if f.RxUser != 0 || f.TxUser != 0 || f.RxKernel != xsk.DefaultFrames || f.TxFree != xsk.DefaultFrames {
			t.Errorf("lane %d: got frames %+v, want RxUser 0, TxUser 0, RxKernel %v, TxFree %v", i, f, xsk.DefaultFrames, xsk.DefaultFrames)
		}
		stats, err := c.socket.Stats()
		expect.NoError(t, err)
		if stats.FrameOwnershipErrors+stats.Rejected+stats.RxInvalid+stats.TxInvalid != 0 {
			t.Errorf("lane %d: %+v", i, stats)
		}
	}
}

// indexOf returns the index of a device.
func (p *pair) indexOf(end int, device string) (index int) {
	p.Helper()
	expect.NoError(p.TB, p.hosts[end].Do(func() error {
		d, err := net.InterfaceByName(device)
		if err == nil {
			index = d.Index
		}
		return err
	}))
	return index
}
