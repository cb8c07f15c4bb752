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

func forEachXDPMode(t *testing.T, test func(r *rig, h Hook)) {
	for _, kind := range []Kind{XDPNative, XDPGeneric} {
		t.Run(kind.String(), func(t *testing.T) {
			r := newRig(t)
			test(r, Hook{Device: r.device, AttachPoint: XDP, Kind: kind})
		})
	}
}

func TestUnpinnedProgramRunsUntilClose(t *testing.T) {
	forEachXDPMode(t, func(r *rig, h Hook) {
		c := r.counter(XDP, xdpPass)
		held, err := h.AttachUnpinned(c.Program)
		expect.NoError(r, err)
		s := r.sender(senderDevice(XDP))
		expect.NoError(r, s.send(10))
		r.waitFor(c, 10)
		l, err := netlink.LinkByIndex(r.device)
		expect.NoError(r, err)
		if x := l.Attrs().Xdp; x == nil || !x.Attached || ebpf.ProgramID(x.ProgId) != r.id(c) {
			r.Errorf("attached: got %+v, want program %d", x, r.id(c))
		}
		expect.NoError(r, held.Close())
		before := r.count(c)
		expect.NoError(r, s.send(10))
		if n := r.count(c); n != before {
			r.Errorf("%d packets after the end", n-before)
		}
		if len(r.pins()) > 0 {
			r.Errorf("pins %q", r.pins())
		}
		l, err = netlink.LinkByIndex(r.device)
		expect.NoError(r, err)
		if x := l.Attrs().Xdp; x != nil && x.Attached {
			r.Errorf("left behind: %+v", x)
		}
	})
}

// TestUnpinnedProgramEndsWithItsProcess only closes the descriptor, as happens when a process is killed.
func TestUnpinnedProgramEndsWithItsProcess(t *testing.T) {
	forEachXDPMode(t, func(r *rig, h Hook) {
		held, err := h.AttachUnpinned(r.counter(XDP, xdpPass).Program)
		expect.NoError(r, err)
		expect.NoError(r, held.link.Close())
		expect.Eventually(r, "the program is detached", func() bool {
			l, err := netlink.LinkByIndex(r.device)
			expect.NoError(r, err)
			return l.Attrs().Xdp == nil || !l.Attrs().Xdp.Attached
		})
	})
}

func TestUnpinnedLinkSurvivesDeviceRemoval(t *testing.T) {
	forEachXDPMode(t, func(r *rig, h Hook) {
		held, err := h.AttachUnpinned(r.counter(XDP, xdpPass).Program)
		expect.NoError(r, err)
		r.unplug()
		expect.NoError(r, held.Close())
	})
}

func TestAttachUnpinnedKeepsForeignProgram(t *testing.T) {
	forEachXDPMode(t, func(r *rig, h Hook) {
		other, mine := r.counter(XDP, xdpPass), r.counter(XDP, xdpPass)
		held, err := h.AttachUnpinned(other.Program)
		expect.NoError(r, err)
		for _, kind := range []Kind{XDPNative, XDPGeneric} {
			again := h
			again.Kind = kind
			_, err = again.AttachUnpinned(mine.Program)
			busy, ok := errors.AsType[*BusyError](err)
			if !ok || busy.Program != r.id(other) || busy.Name != "count_xdp" || busy.Dispatcher() {
				r.Errorf("%v: got error %v", kind, err)
			}
		}
		expect.NoError(r, held.Close())
		held, err = h.AttachUnpinned(mine.Program)
		expect.NoError(r, err)
		expect.NoError(r, held.Close())
	})
}

func TestAttachUnpinnedRequiresXDPAndDevice(t *testing.T) {
	if _, err := (Hook{Device: 1, AttachPoint: Egress}).AttachUnpinned(nil); !errors.Is(err, ebpf.ErrNotSupported) {
		t.Errorf("at egress: got error %v, want %v", err, ebpf.ErrNotSupported)
	}
	if _, err := (Hook{AttachPoint: XDP}).AttachUnpinned(nil); err == nil || !strings.Contains(err.Error(), "invalid device index") {
		t.Errorf("without a device: got error %v, want an error", err)
	}
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
		func() error { _, err := r.hook(XDP, XDPNative).AttachUnpinned(mine.Program); return err },
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
