// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// forEachKind runs a test with every kind of hook.
func forEachKind(t *testing.T, test func(r *rig, h Hook)) {
	for _, k := range []struct {
		point AttachPoint
		kind  Kind
	}{{Egress, TCX}, {Ingress, TCX}, {Egress, Clsact}, {Ingress, Clsact}, {XDP, XDPNative}} {
		t.Run(k.point.String()+" by "+k.kind.String(), func(t *testing.T) {
			r := newRig(t)
			test(r, r.hook(k.point, k.kind))
		})
	}
}

func verdict(p AttachPoint) int32 {
	if p == XDP {
		return xdpPass
	}
	return unspec
}

// senderDevice returns the device to send on, so that packets pass the attach point. A veth keeps the mark within a
// namespace.
func senderDevice(p AttachPoint) string {
	if p == Egress {
		return "near"
	}
	return "far"
}

// TestDeviceWithSameIndexIsNotAttached moves the device to another network namespace. Another one takes its name and its index.
func TestDeviceWithSameIndexIsNotAttached(t *testing.T) {
	forEachKind(t, func(r *rig, h Hook) {
		c := r.counter(h.AttachPoint, verdict(h.AttachPoint))
		r.attach(h, c.Program)
		l, err := netlink.LinkByIndex(r.device)
		expect.NoError(r, err)
		away := otherNamespace(r.T)
		expect.NoError(r, netlink.LinkSetNsFd(l, away))
		err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near", Index: r.device, TxQLen: -1}, PeerName: "other"})
		if err != nil {
			r.Skipf("the index cannot be chosen: %v", err)
		}
		if st := r.state(h); st.State == Attached || st.State == Detached {
			r.Errorf("got status %+v, want neither attached nor detached", st)
		}
		r.attach(h, c.Program)
		if st := r.state(h); st.State != Attached || st.Device != r.device {
			r.Errorf("attached again: got status %+v, want it attached", st)
		}
	})
}

// otherNamespace returns a descriptor of a network namespace without a process.
func otherNamespace(t *testing.T) int {
	t.Helper()
	result := make(chan int)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if unix.Unshare(unix.CLONE_NEWNET) != nil {
			result <- -1
			return
		}
		fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			fd = -1
		}
		result <- fd
	}()
	fd := <-result
	if fd < 0 {
		t.Skip("needs a second network namespace")
	}
	t.Cleanup(func() { expect.NoError(t, unix.Close(fd)) })
	return fd
}

func TestAttachedProgramIsCalledUntilDetached(t *testing.T) {
	forEachKind(t, func(r *rig, h Hook) {
		c := r.counter(h.AttachPoint, verdict(h.AttachPoint))
		if st := r.state(h); st != (Status{}) {
			r.Errorf("before: got %+v, want %+v", st, (Status{}))
		}
		r.attach(h, c.Program)
		want := Status{State: Attached, Kind: h.Kind, Device: r.device, Program: r.id(c)}
		if st := r.state(h); st != want {
			r.Errorf("attached: got %+v, want %+v", st, want)
		}
		s := r.sender(senderDevice(h.AttachPoint))
		expect.NoError(r, s.send(10))
		r.waitFor(c, 10)
		expect.NoError(r, h.Detach())
		before := r.count(c)
		expect.NoError(r, s.send(10))
		if n := r.count(c); n != before {
			r.Errorf("%d packets after the detachment", n-before)
		}
		if st := r.state(h); st != (Status{}) || len(r.pins()) > 0 || r.hasQdisc() {
			r.Errorf("after: %+v, pins %q, has qdisc: %v", st, r.pins(), r.hasQdisc())
		}
		expect.NoError(r, h.Detach())
	})
}

func TestAttachmentOutlivesProgramDescriptor(t *testing.T) {
	forEachKind(t, func(r *rig, h Hook) {
		c := r.counter(h.AttachPoint, verdict(h.AttachPoint))
		r.attach(h, c.Program)
		id := r.id(c)
		expect.NoError(r, c.Close())
		if st := r.state(h); st.State != Attached || st.Program != id {
			r.Errorf("got status %+v, want State %v, Program %v", st, Attached, id)
		}
	})
}

// TestReplacementCountsEachPacketOnce replaces the program while packets flow. Each packet must be counted once.
func TestReplacementCountsEachPacketOnce(t *testing.T) {
	forEachKind(t, func(r *rig, h Hook) {
		if h.AttachPoint == XDP {
			r.Skip("an XDP program cannot identify this test's packets")
		}
		first := r.counter(h.AttachPoint, unspec)
		programs := []*counter{first, r.counterOf(first.counts, h.AttachPoint, unspec)}
		r.attach(h, first.Program)
		s := r.sender(senderDevice(h.AttachPoint))
		const packets = 300
		sent := make(chan error, 1)
		go func() {
			for range packets {
				if err := s.send(1); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		for i, done := 0, false; !done || i%2 != 0 || i < packets; i++ {
			expect.NoError(r, h.Attach(programs[i%2].Program))
			select {
			case err := <-sent:
				expect.NoError(r, err)
				done = true
			default:
			}
		}
		r.waitFor(first, packets)
		if got := r.count(first); got != packets {
			r.Errorf("%d packets sent, %d counted", packets, got)
		}
		if st := r.state(h); st.Program != r.id(programs[1]) {
			r.Errorf("program %d is attached, want the last one", st.Program)
		}
	})
}

func TestAttachRepairsDefunctHook(t *testing.T) {
	forEachKind(t, func(r *rig, h Hook) {
		c := r.counter(h.AttachPoint, verdict(h.AttachPoint))
		r.attach(h, c.Program)
		r.unplug()
		r.plug()
		back := h
		back.Device = r.device
		if st := r.state(back); st.State != Defunct || st.Program == 0 {
			r.Errorf("after the device returned: got %+v, want State %v, Program other than 0", st, Defunct)
		}
		expect.NoError(r, back.Attach(c.Program))
		if st := r.state(back); st.State != Attached || st.Device != r.device {
			r.Errorf("after attaching again: got %+v, want State %v, Device %v", st, Attached, r.device)
		}
		expect.NoError(r, back.Detach())
		if len(r.pins()) > 0 || r.hasQdisc() {
			r.Errorf("pins %q, has qdisc: %v", r.pins(), r.hasQdisc())
		}
	})
}

func TestDetachWorksWithoutTheDevice(t *testing.T) {
	forEachKind(t, func(r *rig, h Hook) {
		c := r.counter(h.AttachPoint, verdict(h.AttachPoint))
		r.attach(h, c.Program)
		r.unplug()
		h.Device = 0
		if st := r.state(h); st.State != Defunct {
			r.Errorf("got status %+v, want State %v", st, Defunct)
		}
		expect.NoError(r, h.Detach())
		if len(r.pins()) > 0 {
			r.Errorf("pins %q", r.pins())
		}
	})
}

// TestDetachCleansUpWithoutPin removes the pin before the detachment. Without its pin a link ends, but a filter stays.
func TestDetachCleansUpWithoutPin(t *testing.T) {
	forEachKind(t, func(r *rig, h Hook) {
		c := r.counter(h.AttachPoint, verdict(h.AttachPoint))
		r.attach(h, c.Program)
		expect.NoError(r, removePin(h.Pin))
		expect.NoError(r, h.Detach())
		if len(r.pins()) > 0 || r.hasQdisc() {
			r.Errorf("pins %q, has qdisc: %v", r.pins(), r.hasQdisc())
		}
	})
}

func TestAttachMovesToRequestedDevice(t *testing.T) {
	forEachKind(t, func(r *rig, h Hook) {
		c := r.counter(h.AttachPoint, verdict(h.AttachPoint))
		r.attach(h, c.Program)
		far, err := netlink.LinkByName("far")
		expect.NoError(r, err)
		before := h
		h.Device = 0
		if st := r.state(h); st.State != Attached || st.Device != before.Device {
			r.Errorf("without the device: got %+v, want State %v, Device %v", st, Attached, before.Device)
		}
		h.Device = far.Attrs().Index
		if st := r.state(h); st.State != OnOtherDevice || st.Device != before.Device {
			r.Errorf("got status %+v, want State %v, Device %v", st, OnOtherDevice, before.Device)
		}
		expect.NoError(r, h.Attach(c.Program))
		if st := r.state(h); st.State != Attached || st.Device != h.Device {
			r.Errorf("got status %+v, want State %v, Device %v", st, Attached, h.Device)
		}
		if h.Kind == Clsact {
			if there, err := before.findFilter(); there != nil || err != nil || r.hasQdisc() {
				r.Errorf("left behind: %+v, %v, has qdisc: %v", there, err, r.hasQdisc())
			}
		}
	})
}

// TestOtherProgramsStillRun attaches another program first, which ends the processing (TC_ACT_OK). The hook's program must run before it.
func TestOtherProgramsStillRun(t *testing.T) {
	for _, point := range []AttachPoint{Egress, Ingress} {
		t.Run(point.String(), func(t *testing.T) {
			r := newRig(t)
			other, mine := r.counter(point, 0), r.counter(point, unspec)
			at := ebpf.AttachTCXEgress
			if point == Ingress {
				at = ebpf.AttachTCXIngress
			}
			l, err := link.AttachTCX(link.TCXOptions{Interface: r.device, Program: other.Program, Attach: at})
			if errors.Is(err, ebpf.ErrNotSupported) {
				r.Skipf("needs Linux 6.6: %v", err)
			}
			expect.NoError(r, err)
			defer l.Close()
			r.attach(r.hook(point, TCX), mine.Program)
			expect.NoError(r, r.sender(senderDevice(point)).send(10))
			r.waitFor(other, 10)
			if n := r.count(mine); n != 10 {
				r.Errorf("got %d packets, want 10", n)
			}
			expect.NoError(r, r.hook(point, TCX).Detach())
			expect.NoError(r, r.sender(senderDevice(point)).send(10))
			r.waitFor(other, 20)
		})
	}
}

func TestBestPrefersTCX(t *testing.T) {
	r := newRig(t)
	c := r.counter(Egress, unspec)
	h := r.hook(Egress, TCX)
	r.attach(h, c.Program)
	expect.NoError(r, h.Detach())
	h.Kind = Best
	expect.NoError(r, h.Attach(c.Program))
	if st := r.state(h); st.Kind != TCX {
		r.Errorf("got status %+v, want Kind %v", st, TCX)
	}
	// A program that is attached with clsact is replaced in place, and stays with clsact.
	expect.NoError(r, h.Detach())
	h.Kind = Clsact
	expect.NoError(r, h.Attach(c.Program))
	h.Kind = Best
	expect.NoError(r, h.Attach(c.Program))
	if st := r.state(h); st.Kind != Clsact {
		r.Errorf("got status %+v, want Kind %v", st, Clsact)
	}
	h.Kind = TCX
	expect.NoError(r, h.Attach(c.Program))
	if st := r.state(h); st.Kind != TCX || r.hasQdisc() {
		r.Errorf("%+v, has qdisc: %v", st, r.hasQdisc())
	}
}

func TestForeignXDPProgramIsReported(t *testing.T) {
	r := newRig(t)
	other, mine := r.counter(XDP, xdpPass), r.counter(XDP, xdpPass)
	held := r.hook(XDP, XDPNative)
	r.attach(held, other.Program)
	h := held
	h.Pin += "_mine"
	err := h.Attach(mine.Program)
	busy, ok := errors.AsType[*BusyError](err)
	if !ok || busy.Program != r.id(other) || !strings.Contains(err.Error(), "(count_xdp) is already attached to the xdp hook") {
		r.Errorf("unexpected error: %v", err)
	}
	if len(r.pins()) != 1 {
		r.Errorf("got pins %q, want length 1", r.pins())
	}
}

func TestForcedDetachmentIsDefunct(t *testing.T) {
	r := newRig(t)
	c := r.counter(Egress, unspec)
	h := r.hook(Egress, TCX)
	r.attach(h, c.Program)
	l, err := link.LoadPinnedLink(h.Pin, nil)
	expect.NoError(r, err)
	defer l.Close()
	expect.NoError(r, l.Detach())
	if st := r.state(h); st.State != Defunct {
		r.Errorf("got status %+v, want State %v", st, Defunct)
	}
	expect.NoError(r, h.Attach(c.Program))
	if st := r.state(h); st.State != Attached {
		r.Errorf("got status %+v, want State %v", st, Attached)
	}
}

// waitFor waits until a program has counted n packets. A veth delivers asynchronously.
func (r *rig) waitFor(c *counter, n uint64) {
	r.Helper()
	expect.Eventually(r, fmt.Sprintf("%d packets are counted", n), func() bool { return r.count(c) >= n })
}
