// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/test/expect"
)

func TestUnpinnedProgramRunsUntilClose(t *testing.T) {
	r := newRig(t)
	c := r.counter(XDP, xdpPass)
	held, err := AttachXDP(r.device, c.Program)
	expect.NoError(r, err)
	s := r.sender(senderDevice(XDP))
	expect.NoError(r, s.send(10))
	r.waitFor(c, 10)
	l, err := netlink.LinkByIndex(r.device)
	expect.NoError(r, err)
	if x := l.Attrs().Xdp; x == nil || !x.Attached || ebpf.ProgramID(x.ProgId) != r.id(c) {
		r.Errorf("attached: got %+v, want program %d", x, r.id(c))
	}
	if len(r.pins()) > 0 {
		r.Errorf("pins %q", r.pins())
	}
	expect.NoError(r, held.Close()) // as when the process is killed
	expect.Eventually(r, "the program is detached", func() bool {
		l, err := netlink.LinkByIndex(r.device)
		expect.NoError(r, err)
		return l.Attrs().Xdp == nil || !l.Attrs().Xdp.Attached
	})
}

func TestUnpinnedProgramKeepsForeignOne(t *testing.T) {
	r := newRig(t)
	other, mine := r.counter(XDP, xdpPass), r.counter(XDP, xdpPass)
	held, err := AttachXDP(r.device, other.Program)
	expect.NoError(r, err)
	_, err = AttachXDP(r.device, mine.Program)
	busy, ok := errors.AsType[*BusyError](err)
	if !ok || busy.Program != r.id(other) || busy.Name != "count_xdp" || busy.Dispatcher() {
		r.Errorf("got error %v", err)
	}
	expect.NoError(r, errors.Join(held.Detach(), held.Close()))
	held, err = AttachXDP(r.device, mine.Program)
	expect.NoError(r, err)
	expect.NoError(r, held.Close())
}

// TestLibxdpDispatcherIsReportedAndKept attaches a program with the dispatcher's name by netlink, as libxdp does.
func TestLibxdpDispatcherIsReportedAndKept(t *testing.T) {
	r := newRig(t)
	dispatcher, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: dispatcherName, Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()},
	})
	if err != nil {
		r.Skipf("needs CAP_BPF: %v", err)
	}
	defer dispatcher.Close()
	l, err := netlink.LinkByIndex(r.device)
	expect.NoError(r, err)
	const driver = 1 << 2 // XDP_FLAGS_DRV_MODE
	expect.NoError(r, netlink.LinkSetXdpFdWithFlags(l, dispatcher.FD(), driver))
	mine := r.counter(XDP, xdpPass)
	for _, attach := range []func() error{
		func() error { _, err := AttachXDP(r.device, mine.Program); return err },
		func() error { return r.hook(XDP, XDPNative).Attach(mine.Program) },
	} {
		err = attach()
		busy, ok := errors.AsType[*BusyError](err)
		if !ok || !busy.Dispatcher() || !strings.Contains(err.Error(), "(xdp_dispatcher) is already attached to the xdp hook; it is libxdp's dispatcher") {
			r.Errorf("unexpected error: %v", err)
		}
	}
	l, err = netlink.LinkByIndex(r.device)
	expect.NoError(r, err)
	want, err := programID(dispatcher)
	expect.NoError(r, err)
	if x := l.Attrs().Xdp; x == nil || ebpf.ProgramID(x.ProgId) != want {
		r.Errorf("the dispatcher is gone: got %+v, want non-nil", x)
	}
}
