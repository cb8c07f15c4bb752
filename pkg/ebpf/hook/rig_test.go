// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/namespace"
)

// rig is a veth pair in its own network namespace, with its own BPF file system.
type rig struct {
	*testing.T
	device int // its peer is called "far"
	fs     string
}

// newRig moves the test into a new network namespace. The thread is never unlocked, so thread and namespace end with the
// test's goroutine.
func newRig(t *testing.T) *rig {
	t.Helper()
	namespace.Enter(t)
	_ = rlimit.RemoveMemlock()
	r := &rig{T: t, fs: t.TempDir()}
	if err := unix.Mount("bpf", r.fs, "bpf", 0, ""); err != nil {
		t.Skipf("needs root and a kernel with a BPF file system: %v", err)
	}
	t.Cleanup(func() { expect.NoError(r, unix.Unmount(r.fs, unix.MNT_DETACH)) })
	r.plug()
	return r
}

// plug creates the veth pair, with a new index each time.
func (r *rig) plug() {
	r.Helper()
	err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near", TxQLen: -1}, PeerName: "far"})
	if err != nil {
		r.Skipf("needs veth links: %v", err)
	}
	for _, name := range []string{"far", "near"} {
		l, err := netlink.LinkByName(name)
		expect.NoError(r, err)
		expect.NoError(r, netlink.LinkSetUp(l))
		r.device = l.Attrs().Index
	}
}

func (r *rig) unplug() {
	r.Helper()
	l, err := netlink.LinkByIndex(r.device)
	expect.NoError(r, err)
	expect.NoError(r, netlink.LinkDel(l))
}

// hook returns a hook at that attach point. It skips the test if the kernel does not support the kind.
func (r *rig) hook(point AttachPoint, kind Kind) Hook {
	r.Helper()
	return Hook{
		Device: r.device, AttachPoint: point, Kind: kind, Name: "test_" + point.String(),
		Pin: filepath.Join(r.fs, point.String()), QdiscPin: filepath.Join(r.fs, "clsact"),
	}
}

func (r *rig) attach(h Hook, p *ebpf.Program) {
	r.Helper()
	err := h.Attach(p)
	if h.Kind == TCX && errors.Is(err, ebpf.ErrNotSupported) {
		r.Skipf("needs Linux 6.6: %v", err)
	}
	expect.NoError(r, err)
}

func (r *rig) state(h Hook) Status {
	r.Helper()
	st, err := h.Status()
	expect.NoError(r, err)
	return st
}

// pins returns the files in the BPF file system.
func (r *rig) pins() (names []string) {
	r.Helper()
	entries, err := os.ReadDir(r.fs)
	expect.NoError(r, err)
	for _, e := range entries {
		if !strings.Contains(e.Name(), ".") { // files of the kernel have a dot
			names = append(names, e.Name())
		}
	}
	return names
}

// hasQdisc reports whether the device has a clsact or ingress qdisc.
func (r *rig) hasQdisc() bool {
	r.Helper()
	kind, err := r.hook(Egress, Clsact).qdisc()
	expect.NoError(r, err)
	return kind != ""
}

// counter is a program that counts the packets with the test's mark and lets them continue.
type counter struct {
	*ebpf.Program
	counts *ebpf.Map
}

// verdicts that let the packet continue.
const (
	unspec  = -1
	xdpPass = 2
)

// mark identifies a test's packets among those that the kernel sends by itself.
const mark = 0x7e57

const skbMark = 8 // offset in struct __sk_buff

func (r *rig) counter(point AttachPoint, verdict int32) *counter {
	r.Helper()
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		r.Skipf("needs CAP_BPF: %v", err)
	}
	r.Cleanup(func() { counts.Close() })
	return r.counterOf(counts, point, verdict)
}

func (r *rig) counterOf(counts *ebpf.Map, point AttachPoint, verdict int32) *counter {
	r.Helper()
	spec := &ebpf.ProgramSpec{Name: "count_" + point.String(), Type: ebpf.SchedCLS, License: "GPL"}
	if point == XDP {
		spec.Type = ebpf.XDP
	} else {
		spec.Instructions = asm.Instructions{
			asm.LoadMem(asm.R1, asm.R1, skbMark, asm.Word),
			asm.JNE.Imm(asm.R1, mark, "out"),
		}
	}
	spec.Instructions = append(spec.Instructions,
		asm.LoadMapPtr(asm.R1, counts.FD()),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, verdict).WithSymbol("out"),
		asm.Return(),
	)
	p, err := ebpf.NewProgram(spec)
	expect.NoError(r, err)
	r.Cleanup(func() { p.Close() })
	return &counter{p, counts}
}

func (r *rig) id(c *counter) ebpf.ProgramID {
	r.Helper()
	id, err := programID(c.Program)
	expect.NoError(r, err)
	return id
}

func (r *rig) count(c *counter) (n uint64) {
	r.Helper()
	expect.NoError(r, c.counts.Lookup(uint32(0), &n))
	return n
}

// sender sends packets of the test out of a device of the namespace.
type sender struct {
	fd int
	to unix.SockaddrLinklayer
}

func (r *rig) sender(device string) *sender {
	r.Helper()
	l, err := netlink.LinkByName(device)
	expect.NoError(r, err)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	expect.NoError(r, err)
	r.Cleanup(func() { unix.Close(fd) })
	expect.NoError(r, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark))
	return &sender{fd, unix.SockaddrLinklayer{Ifindex: l.Attrs().Index, Halen: 6}}
}

// send sends n Ethernet frames of an experimental type.
func (s *sender) send(n int) error {
	frame := make([]byte, 64)
	frame[12], frame[13] = 0x88, 0xb5
	for range n {
		if err := unix.Sendto(s.fd, frame, 0, &s.to); err != nil {
			return err
		}
	}
	return nil
}
