// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// accept is TC_ACT_OK: the packet is accepted, and later programs do not see it.
const accept = 0

// putForeign adds or replaces a filter as another program does it.
func (r *rig) putForeign(h Hook, c *counter, name string, priority uint16, handle uint32) {
	r.Helper()
	expect.NoError(r, netlink.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: h.Device, Parent: h.parent(), Handle: handle, Priority: priority, Protocol: unix.ETH_P_ALL},
		Fd:          c.FD(), Name: name, DirectAction: true,
	}))
}

// neighbours returns the names of the programs before and after the hook's.
func (r *rig) neighbours(h Hook) (before, after []string) {
	r.Helper()
	b, a, err := h.Order()
	expect.NoError(r, err)
	for _, n := range b {
		before = append(before, n.Name)
	}
	for _, n := range a {
		after = append(after, n.Name)
	}
	return before, after
}

// TestFilterRunsBeforeThoseOfNetworkPlugins has the filter of Cilium (priority 1, handle 1), which accepts all packets: attached
// before, then attached anew behind the back of ropewalk's, which comes first again with the next Attach.
func TestFilterRunsBeforeThoseOfNetworkPlugins(t *testing.T) {
	for _, point := range []AttachPoint{Egress, Ingress} {
		t.Run(point.String(), func(t *testing.T) {
			r := newRig(t)
			h := r.hook(point, Clsact)
			other, mine := r.counter(point, accept), r.counter(point, unspec)
			expect.NoError(r, netlink.QdiscAdd(h.clsact()))
			r.putForeign(h, other, "cil_netdev", 1, 1)
			send := func(what string, wantMine, wantOther uint64) {
				t.Helper()
				expect.NoError(r, r.sender(senderDevice(point)).send(10))
				r.waitFor(other, wantOther)
				if n := r.count(mine); n != wantMine {
					r.Errorf("%s: the program saw %d packets, want %d", what, n, wantMine)
				}
			}
			expect.NoError(r, h.Attach(mine.Program))
			send("attached after the other", 10, 10)
			if before, after := r.neighbours(h); before != nil || !slices.Equal(after, []string{"cil_netdev"}) {
				r.Errorf("got %q before and %q after, want none and cil_netdev", before, after)
			}
			foreign := h.filter(place{1, 1})
			expect.NoError(r, netlink.FilterDel(foreign))
			r.putForeign(h, other, "cil_netdev", 1, 1)
			send("the other attached anew", 10, 20)
			if before, after := r.neighbours(h); !slices.Equal(before, []string{"cil_netdev"}) || after != nil {
				r.Errorf("got %q before and %q after, want cil_netdev and none", before, after)
			}
			expect.NoError(r, h.Attach(mine.Program))
			send("in front again", 20, 30)
			r.putForeign(h, other, "cil_netdev", 1, 1)
			send("the other replaced in place", 30, 40)
			expect.NoError(r, h.Detach())
			send("detached", 30, 50)
			if left, err := h.filters(); err != nil || len(left) != 1 || !r.hasQdisc() {
				r.Errorf("got %v left, error %v, want the foreign filter", left, err)
			}
		})
	}
}

// TestFilterOfLowerPriorityMovesToFront attaches as earlier versions did.
func TestFilterOfLowerPriorityMovesToFront(t *testing.T) {
	r := newRig(t)
	h := r.hook(Egress, Clsact)
	old, mine := r.counter(Egress, unspec), r.counter(Egress, unspec)
	expect.NoError(r, h.Attach(old.Program))
	expect.NoError(r, h.deleteFilters())
	r.putForeign(h, old, h.Name, 71, 1)
	if st := r.state(h); st.State != Attached {
		r.Fatalf("got status %+v, want State %v", st, Attached)
	}
	r.putForeign(h, r.counter(Egress, accept), "foreign", 1, 1)
	expect.NoError(r, h.Attach(mine.Program))
	if left, err := h.filters(); err != nil || len(left) != 2 || left[0].Program != r.id(mine) || left[0].Priority != 1 {
		r.Errorf("got %v, error %v, want the new filter and the foreign one", left, err)
	}
}

// TestDuplicateFiltersAreRemoved: a process was killed while it moved the filter to the front.
func TestDuplicateFiltersAreRemoved(t *testing.T) {
	for name, change := range map[string]func(h Hook, p *ebpf.Program) error{
		"by Attach": func(h Hook, p *ebpf.Program) error { return h.Attach(p) },
		"by Detach": func(h Hook, _ *ebpf.Program) error { return h.Detach() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			h := r.hook(Egress, Clsact)
			c, other := r.counter(Egress, unspec), r.counter(Egress, accept)
			expect.NoError(r, h.Attach(c.Program))
			r.putForeign(h, c, h.Name, 1, handles[1])
			r.putForeign(h, other, "foreign", 1, 1) // in front of both, so that Attach must move
			want := 1
			if name == "by Attach" {
				want = 2
			}
			expect.NoError(r, change(h, r.counter(Egress, unspec).Program))
			if left, err := h.filters(); err != nil || len(left) != want || left[want-1].Name != "foreign" {
				r.Errorf("got %v, error %v, want %d filters, the last one foreign", left, err, want)
			}
		})
	}
}

// TestFilterBehindOneOfOtherProtocolStays: nothing can precede a filter of priority 1 that has another protocol, so each Attach
// keeps the place behind it.
func TestFilterBehindOneOfOtherProtocolStays(t *testing.T) {
	r := newRig(t)
	h := r.hook(Egress, Clsact)
	expect.NoError(r, netlink.QdiscAdd(h.clsact()))
	foreign := h.filter(place{1, 1})
	foreign.Fd, foreign.Name, foreign.Protocol = r.counter(Egress, accept).FD(), "foreign", unix.ETH_P_IP
	expect.NoError(r, netlink.FilterAdd(foreign))
	for range 2 {
		c := r.counter(Egress, unspec)
		expect.NoError(r, h.Attach(c.Program))
		if before, after := r.neighbours(h); !slices.Equal(before, []string{"foreign"}) || after != nil {
			r.Errorf("got %q before and %q after, want foreign and none", before, after)
		}
		if inFront, err := h.InFront(); !inFront || err != nil {
			r.Errorf("got in front %v, error %v, want true", inFront, err)
		}
		if at, err := h.findFilter(); err != nil || at.Priority != 2 || at.Handle != handles[0] {
			r.Errorf("got filter %+v, error %v, want priority 2, handle %#x", at, err, handles[0])
		}
	}
}

func TestTCXProgramMovesToFront(t *testing.T) {
	for _, point := range []AttachPoint{Egress, Ingress} {
		t.Run(point.String(), func(t *testing.T) {
			r := newRig(t)
			h := r.hook(point, TCX)
			mine, next, other := r.counter(point, unspec), r.counter(point, unspec), r.counter(point, accept)
			r.attach(h, mine.Program)
			l, err := link.AttachTCX(link.TCXOptions{Interface: r.device, Program: other.Program, Attach: h.tcxType(), Anchor: link.Head()})
			expect.NoError(r, err)
			defer l.Close()
			name := ProgramName(r.id(other))
			if before, after := r.neighbours(h); !slices.Equal(before, []string{name}) || after != nil {
				r.Errorf("got %q before and %q after, want %q and none", before, after, name)
			}
			expect.NoError(r, h.Attach(next.Program))
			expect.NoError(r, r.sender(senderDevice(point)).send(10))
			r.waitFor(other, 10)
			if n := r.count(next); n != 10 {
				r.Errorf("the program saw %d packets, want 10", n)
			}
			if st := r.state(h); st.State != Attached || st.Program != r.id(next) || !slices.Equal(r.pins(), []string{point.String()}) {
				r.Errorf("got %+v, pins %q", st, r.pins())
			}
			if list, err := h.tcxPrograms(); err != nil || len(list) != 2 {
				r.Errorf("got %v, error %v, want two programs", list, err)
			}
		})
	}
}

// TestFilterRunsAfterTCXPrograms: the kernel runs all programs of tcx before the filters.
func TestFilterRunsAfterTCXPrograms(t *testing.T) {
	r := newRig(t)
	h := r.hook(Egress, Clsact)
	other, mine := r.counter(Egress, accept), r.counter(Egress, unspec)
	l, err := link.AttachTCX(link.TCXOptions{Interface: r.device, Program: other.Program, Attach: h.tcxType()})
	if errors.Is(err, ebpf.ErrNotSupported) {
		r.Skipf("needs Linux 6.6: %v", err)
	}
	expect.NoError(r, err)
	defer l.Close()
	expect.NoError(r, h.Attach(mine.Program))
	before, _, err := h.Order()
	if err != nil || len(before) != 1 || !strings.Contains(before[0].String(), "tcx") {
		r.Errorf("got %v, error %v, want the tcx program", before, err)
	}
	expect.NoError(r, r.sender("near").send(10))
	r.waitFor(other, 10)
	if n := r.count(mine); n != 0 {
		r.Errorf("the filter saw %d packets", n)
	}
}
