// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"encoding/binary"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/test/expect"
)

// etherType is the EtherType of test frames (IEEE 802, local experimental); only those are redirected.
const etherType = 0x88b5

// vethPair is a veth pair between two namespaces.
type vethPair struct {
	lab  *netlab.Lab
	ends [2]*vethEnd
}

// vethEnd is one end, with the system calls made in its namespace.
type vethEnd struct {
	linuxSystem
	host     *netlab.Host
	device   string
	index    int
	mac      net.HardwareAddr
	xsks     *ebpf.Map
	patience time.Duration // for a queue whose last Socket was closed just now
}

// bind waits for the kernel to release the queue.
func (e *vethEnd) bind(fd int, address *unix.SockaddrXDP) error {
	for end := time.Now().Add(e.patience); ; time.Sleep(time.Millisecond) {
		err := e.linuxSystem.bind(fd, address)
		if !errors.Is(err, unix.EBUSY) || !time.Now().Before(end) {
			return err
		}
	}
}

func (e *vethEnd) socket() (fd int, err error) {
	err = e.host.Do(func() (err error) {
		fd, err = e.linuxSystem.socket()
		return err
	})
	return fd, err
}

func (e *vethEnd) probe(ifindex int) (c Capabilities, err error) {
	err = e.host.Do(func() (err error) {
		c, err = Probe(ifindex)
		return err
	})
	return c, err
}

func newLink(t testing.TB, queues int) *vethPair {
	t.Helper()
	netlabtest.NeedAFXDP(t)
	lab, hosts := netlabtest.Hosts(t, "xsk", "a", "b")
	a, b := hosts[0], hosts[1]
	c, err := lab.Cable(a, b, netlab.CableConfig{Queues: queues, MTU: 1500})
	expect.NoError(t, err)
	l := &vethPair{lab: lab, ends: [2]*vethEnd{{host: a, device: c.DeviceA, patience: deadline}, {host: b, device: c.DeviceB, patience: deadline}}}
	for _, e := range l.ends {
		expect.NoError(t, e.host.Do(func() error {
			device, err := net.InterfaceByName(e.device)
			if err == nil {
				e.index, e.mac = device.Index, device.HardwareAddr
			}
			return err
		}))
	}
	return l
}

// redirect attaches a program to both ends that redirects test frames to the socket of their queue, if there is one.
func (l *vethPair) redirect(t testing.TB, queues int, mode link.XDPAttachFlags, flags uint32) {
	t.Helper()
	expect.NoError(t, rlimit.RemoveMemlock())
	for _, e := range l.ends {
		xsks, err := ebpf.NewMap(&ebpf.MapSpec{
			Name: "test_xsks", Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: uint32(queues),
		})
		if errors.Is(err, unix.EPERM) {
			t.Skipf("needs CAP_BPF: %v", err)
		}
		expect.NoError(t, err)
		t.Cleanup(func() { xsks.Close() })
		e.xsks = xsks
		e.attach(t, mode, &ebpf.ProgramSpec{
			Name: "test_redirect", Type: ebpf.XDP, License: "GPL", Instructions: redirect(xsks.FD()), Flags: flags,
		})
	}
}

// attach loads a program and attaches it to the device.
func (e *vethEnd) attach(t testing.TB, mode link.XDPAttachFlags, spec *ebpf.ProgramSpec) {
	t.Helper()
	program, err := ebpf.NewProgram(spec)
	expect.NoError(t, err)
	t.Cleanup(func() { program.Close() })
	var attached link.Link
	expect.NoError(t, e.host.Do(func() (err error) {
		attached, err = link.AttachXDP(link.XDPOptions{Program: program, Interface: e.index, Flags: mode})
		return err
	}))
	t.Cleanup(func() { _ = attached.Close() })
}

func redirect(xsks int) asm.Instructions {
	const (
		data, dataEnd, queue = 0, 4, 16 // in struct xdp_md
		pass                 = 2
	)
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, data, asm.Word),
		asm.LoadMem(asm.R3, asm.R1, dataEnd, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, 14),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
		asm.LoadMem(asm.R4, asm.R2, 12, asm.Half),
		asm.JNE.Imm(asm.R4, int32(networkOrder(etherType)), "pass"),
		asm.LoadMem(asm.R2, asm.R1, queue, asm.Word),
		asm.LoadMapPtr(asm.R1, xsks),
		asm.Mov.Imm(asm.R3, pass),
		asm.FnRedirectMap.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, pass).WithSymbol("pass"),
		asm.Return(),
	}
}

// open opens a Socket at this end and puts it into the map.
func (e *vethEnd) open(t testing.TB, c Config) *Socket {
	t.Helper()
	c.Interface = e.index
	s, err := open(c, e)
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, s.Close()) })
	if e.xsks != nil {
		expect.NoError(t, e.xsks.Update(uint32(c.Queue), uint32(s.FD()), ebpf.UpdateAny))
	}
	return s
}

// number writes frame n: header, number, fill pattern.
func (l *vethPair) number(frame []byte, n uint64) {
	copy(frame, l.ends[1].mac)
	copy(frame[6:], l.ends[0].mac)
	binary.BigEndian.PutUint16(frame[12:], etherType)
	binary.BigEndian.PutUint64(frame[14:], n)
	for i := range frame[22:] {
		frame[22+i] = byte(n) + byte(i)
	}
}

// numberOf checks a frame written by number, and returns its number.
func numberOf(t testing.TB, frame []byte) uint64 {
	t.Helper()
	n := binary.BigEndian.Uint64(frame[14:])
	for i, b := range frame[22:] {
		if b != byte(n)+byte(i) {
			t.Fatalf("frame %d has another content at %d", n, 22+i)
		}
	}
	return n
}

// deadline bounds every wait, in case of a fault.
const deadline = 20 * time.Second

// await calls do until it reports true, polling the socket between.
func await(t testing.TB, s *Socket, what string, do func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !do(); {
		if time.Now().After(end) {
			stats, _ := s.Stats()
			t.Fatalf("%s: not within %v; %+v, %+v", what, deadline, s.Frames(), stats)
		}
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(s.FD()), Events: unix.POLLIN}}, 1)
		if err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
	}
}
