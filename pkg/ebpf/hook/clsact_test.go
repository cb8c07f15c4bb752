// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

func TestExistingQdiscIsKept(t *testing.T) {
	r := newRig(t)
	h := r.hook(Egress, Clsact)
	expect.NoError(r, netlink.QdiscAdd(h.clsact()))
	expect.NoError(r, h.Attach(r.counter(Egress, unspec).Program))
	expect.NoError(r, h.Detach())
	if !r.hasQdisc() || len(r.pins()) > 0 {
		r.Errorf("has qdisc: %v, pins %q", r.hasQdisc(), r.pins())
	}
}

func TestQdiscStaysWhileOtherFiltersUseIt(t *testing.T) {
	r := newRig(t)
	h := r.hook(Egress, Clsact)
	c := r.counter(Ingress, unspec)
	expect.NoError(r, h.Attach(r.counter(Egress, unspec).Program))
	other := r.hook(Ingress, Clsact).filter(place{1, 1})
	other.Fd, other.Name = c.FD(), "foreign"
	expect.NoError(r, netlink.FilterAdd(other))
	expect.NoError(r, h.Detach())
	if !r.hasQdisc() {
		r.Error("the foreign filter was removed with the qdisc")
	}
}

func TestQdiscIsRemovedWithLastHook(t *testing.T) {
	r := newRig(t)
	egress, ingress := r.hook(Egress, Clsact), r.hook(Ingress, Clsact)
	expect.NoError(r, egress.Attach(r.counter(Egress, unspec).Program))
	expect.NoError(r, ingress.Attach(r.counter(Ingress, unspec).Program))
	expect.NoError(r, egress.Detach())
	if !r.hasQdisc() || r.state(ingress).State != Attached {
		r.Errorf("has qdisc: %v, ingress %+v", r.hasQdisc(), r.state(ingress))
	}
	expect.NoError(r, ingress.Detach())
	if r.hasQdisc() || len(r.pins()) > 0 {
		r.Errorf("has qdisc: %v, pins %q", r.hasQdisc(), r.pins())
	}
}

func TestForeignFilterIsKept(t *testing.T) {
	r := newRig(t)
	h := r.hook(Egress, Clsact)
	other, mine := r.counter(Egress, unspec), r.counter(Egress, unspec)
	expect.NoError(r, netlink.QdiscAdd(h.clsact()))
	for _, handle := range handles {
		r.putForeign(h, other, "foreign", 1, handle)
	}
	err := h.Attach(mine.Program)
	busy, ok := errors.AsType[*BusyError](err)
	if !ok || busy.Name != "foreign" || busy.Program != r.id(other) || len(r.pins()) > 0 {
		r.Errorf("%v, pins %q", err, r.pins())
	}
	expect.NoError(r, netlink.FilterDel(h.filter(place{1, handles[0]})))
	expect.NoError(r, h.Attach(mine.Program))
	r.putForeign(h, other, h.Name, 1, handles[0]) // as another program that has the same name
	if st := r.state(h); st.State != Replaced || st.Other != r.id(other) {
		r.Errorf("got status %+v, want State %v, Other %v", st, Replaced, r.id(other))
	}
	r.putForeign(h, other, "foreign", 1, handles[0])
	if st := r.state(h); st.State != Defunct {
		r.Errorf("got status %+v, want State %v", st, Defunct)
	}
	expect.NoError(r, h.Detach())
	if left, err := h.filters(); err != nil || len(left) != 2 || left[0].Name != "foreign" || left[1].Name != "foreign" {
		r.Errorf("got %v, error %v, want the two foreign filters", left, err)
	}
}

func TestFilterWithoutPinIsReplaced(t *testing.T) { // as if the process was killed before it pinned the filter
	r := newRig(t)
	h := r.hook(Egress, Clsact)
	expect.NoError(r, h.Attach(r.counter(Egress, unspec).Program))
	expect.NoError(r, os.Remove(h.Pin))
	c := r.counter(Egress, unspec)
	expect.NoError(r, h.Attach(c.Program))
	if st := r.state(h); st.State != Attached || st.Program != r.id(c) {
		r.Errorf("got status %+v, want State %v, Program %v", st, Attached, r.id(c))
	}
	filters, err := listFilters(r.device, h.parent())
	if err != nil || len(filters) != 1 {
		r.Errorf("got %v, error %v, want length 1, no error", filters, err)
	}
}

func TestIngressQdiscIsReportedAsConflict(t *testing.T) {
	r := newRig(t)
	h := r.hook(Egress, Clsact)
	expect.NoError(r, netlink.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: r.device, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS,
	}}))
	err := h.Attach(r.counter(Egress, unspec).Program)
	if err == nil || !strings.Contains(err.Error(), "qdisc of type ingress") || len(r.pins()) > 0 {
		r.Errorf("%v, pins %q", err, r.pins())
	}
}

func TestFailedPinLeavesNoFilter(t *testing.T) {
	forEachKind(t, func(r *rig, h Hook) {
		h.Pin = filepath.Join(r.fs, "absent", "pin")
		err := h.Attach(r.counter(h.AttachPoint, verdict(h.AttachPoint)).Program)
		if h.Kind == TCX && errors.Is(err, ebpf.ErrNotSupported) {
			r.Skipf("needs Linux 6.6: %v", err)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			r.Errorf("unexpected error: %v", err)
		}
		h.Pin = filepath.Join(r.fs, "pin")
		c := r.counter(h.AttachPoint, verdict(h.AttachPoint))
		if r.hasQdisc() {
			r.Error("the qdisc was not removed")
		}
		expect.NoError(r, h.Attach(c.Program)) // nothing was left behind
	})
}

// block makes pinning at that path fail.
func (r *rig) block(pin string) (unblock func()) {
	r.Helper()
	inner := filepath.Join(pin+"_next", "in_the_way")
	expect.NoError(r, os.MkdirAll(inner, 0o700))
	return func() { expect.NoError(r, errors.Join(os.Remove(inner), os.Remove(pin+"_next"))) }
}

func TestQdiscIsRemovedWhenItsPinFails(t *testing.T) {
	r := newRig(t)
	h, c := r.hook(Egress, Clsact), r.counter(Egress, unspec)
	unblock := r.block(h.QdiscPin)
	if err := h.Attach(c.Program); err == nil || r.hasQdisc() {
		r.Errorf("%v, has qdisc: %v", err, r.hasQdisc())
	}
	unblock()
	if len(r.pins()) > 0 {
		r.Errorf("pins %q", r.pins())
	}
	expect.NoError(r, h.Attach(c.Program))
}

// TestFailedReplacementKeepsOldProgram fails before and after the pin is made.
func TestFailedReplacementKeepsOldProgram(t *testing.T) {
	r := newRig(t)
	h, old := r.hook(Egress, Clsact), r.counter(Egress, unspec)
	expect.NoError(r, h.Attach(old.Program))
	want := r.state(h)
	unblock := r.block(h.Pin)
	if err := h.Attach(r.counter(Egress, unspec).Program); err == nil {
		r.Error("attached without a pin")
	}
	unblock()
	if st := r.state(h); st != want {
		r.Errorf("no pin: got %+v, want %+v", st, want)
	}
	if err := h.Attach(r.counter(XDP, xdpPass).Program); err == nil {
		r.Error("a filter took an XDP program")
	}
	if st := r.state(h); st != want || len(r.pins()) != 2 {
		r.Errorf("no filter: got %+v, want %+v, pins %q", st, want, r.pins())
	}
	s := r.sender("near")
	expect.NoError(r, s.send(10))
	r.waitFor(old, 10)
}

func TestProgramOfWrongTypeLeavesNoFilter(t *testing.T) {
	r := newRig(t)
	h := r.hook(Egress, Clsact)
	if err := h.Attach(r.counter(XDP, xdpPass).Program); err == nil || len(r.pins()) > 0 || r.hasQdisc() {
		r.Errorf("%v, pins %q, has qdisc: %v", err, r.pins(), r.hasQdisc())
	}
}

// TestFailedChangeOfKindKeepsOldProgram requests the other kind with a program of the wrong type.
func TestFailedChangeOfKindKeepsOldProgram(t *testing.T) {
	for kind, other := range map[Kind]Kind{TCX: Clsact, Clsact: TCX} {
		t.Run(kind.String(), func(t *testing.T) {
			r := newRig(t)
			h, c := r.hook(Egress, kind), r.counter(Egress, unspec)
			r.attach(h, c.Program)
			want, pins := r.state(h), r.pins()
			if err := r.hook(Egress, other).Attach(r.counter(XDP, xdpPass).Program); err == nil {
				r.Error("attach succeeded")
			}
			if st := r.state(h); st != want || !slices.Equal(r.pins(), pins) || r.hasQdisc() != (kind == Clsact) {
				r.Errorf("got %+v, want %+v; pins %q; got qdisc %v, want %v", st, want, r.pins(), r.hasQdisc(), (kind == Clsact))
			}
		})
	}
}

func TestFailedMoveKeepsOldProgram(t *testing.T) {
	r := newRig(t)
	h, c := r.hook(Egress, TCX), r.counter(Egress, unspec)
	r.attach(h, c.Program)
	want := r.state(h)
	far, err := netlink.LinkByName("far")
	expect.NoError(r, err)
	next := h
	next.Device = far.Attrs().Index
	if err := next.Attach(r.counter(XDP, xdpPass).Program); err == nil {
		r.Error("attach succeeded")
	}
	if st := r.state(h); st != want {
		r.Errorf("got %+v, want %+v", st, want)
	}
}

func TestBPFFSIsFoundOrMounted(t *testing.T) {
	r := newRig(t)
	plain, none := t.TempDir(), filepath.Join(r.fs, "none")
	for _, tt := range []struct {
		candidates []string
		want       string
	}{
		{[]string{r.fs, none}, r.fs},
		{[]string{plain, r.fs, none}, r.fs},
		{[]string{plain, none, r.fs}, r.fs},
		{[]string{plain, none}, plain},
	} {
		got, err := findBPFFS(tt.candidates, "/proc/thread-self/ns/mnt")
		if err != nil || got != tt.want || !isBPFFS(got) {
			r.Errorf("%s: got %s, error %v, want %s, no error", tt.candidates, got, err, tt.want)
		}
	}
	expect.NoError(r, unix.Unmount(plain, 0))
	_, err := findBPFFS([]string{none}, "/proc/thread-self/ns/mnt")
	if !errors.Is(err, ErrNoBPFFS) || !strings.Contains(err.Error(), "`mount -t bpf -o mode=700 bpf "+none+"`") {
		r.Errorf("unexpected error: %v", err)
	}
}

// TestMountInOwnNamespaceIsRejected runs as under `ip netns exec`.
func TestMountInOwnNamespaceIsRejected(t *testing.T) {
	newRig(t)
	plain := t.TempDir()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Skipf("needs a mount namespace: %v", err)
	}
	_, err := findBPFFS([]string{plain}, "/proc/self/ns/mnt")
	if !errors.Is(err, ErrNoBPFFS) || !strings.Contains(err.Error(), "(not in ip netns exec) run `mount -t bpf -o mode=700 bpf "+plain+"`") || isBPFFS(plain) {
		t.Errorf("unexpected error: %v", err)
	}
}

// TestMountInUnknownNamespaceIsRejected: an unknown namespace is rejected unless a BPF file system is mounted.
func TestMountInUnknownNamespaceIsRejected(t *testing.T) {
	r := newRig(t)
	plain := t.TempDir()
	_, err := findBPFFS([]string{plain}, filepath.Join(plain, "unreadable"))
	if !errors.Is(err, ErrNoBPFFS) || !strings.Contains(err.Error(), "cannot determine") ||
		!strings.Contains(err.Error(), "`mount -t bpf -o mode=700 bpf "+plain+"`") || isBPFFS(plain) {
		t.Errorf("unexpected error: %v", err)
	}
	if got, err := findBPFFS([]string{r.fs, plain}, filepath.Join(plain, "unreadable")); got != r.fs || err != nil {
		t.Errorf("got %s, error %v, want %s, no error", got, err, r.fs)
	}
}

func TestRemoveEmptyKeepsRootAndUsedDirectories(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"a/b/c", "a/d"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	RemoveEmpty(root, filepath.Join(root, "a/b/c"))
	if _, err := os.Stat(filepath.Join(root, "a/b")); err == nil {
		t.Error("an empty directory stays")
	}
	RemoveEmpty(root, filepath.Join(root, "a/d"))
	if _, err := os.Stat(root); err != nil {
		t.Error(err)
	}
}
