// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

// eachHook runs a test with every kind of hook.
func eachHook(t *testing.T, test func(r *rig, gather Gather)) {
	for _, k := range []struct {
		kind   hook.Kind
		gather Gather
	}{{hook.TCX, GatherAuto}, {hook.Clsact, GatherTC}, {hook.Best, GatherXDP}} {
		t.Run(k.kind.String()+" "+string(k.gather), func(t *testing.T) {
			r := newRig(t)
			r.here.host.kind, r.there.host.kind = k.kind, k.kind
			test(r, k.gather)
		})
	}
}

func TestGatherOnlyPeersAreNotSpreadTo(t *testing.T) {
	r := newRig(t)
	cfg := r.here.config()
	cfg.GatherOnly = []netip.AddrPort{netip.AddrPortFrom(thereAddr, port)}
	if report := r.here.attach(cfg); len(report.Peers) != 0 || len(report.GatherOnly) != 1 {
		r.Errorf("got report %+v, want len(Peers) 0, len(GatherOnly) 1", report)
	}
	receiver := r.there.socket(port)
	for flow, ports := range r.sources(r.senders(), receiver) {
		if len(ports) != 1 || !ports[port] {
			r.Errorf("flow %d came from %v", flow, ports)
		}
	}
	cfg.Peers, cfg.GatherOnly = cfg.GatherOnly, nil
	r.here.attach(cfg)
	r.there.detach(port)
	lanes, senders := map[uint16]bool{}, r.senders()
	r.prove(senders, receiver)
	for _, ports := range r.sources(senders, receiver) {
		for p := range ports {
			lanes[p] = true
		}
	}
	if lanes[port] || len(lanes) < fewestPorts {
		r.Errorf("got ports %v, want %d different ones", lanes, flows)
	}
}

func TestFlowsAreSpreadAndGathered(t *testing.T) {
	eachHook(t, func(r *rig, gather Gather) {
		cfg := r.here.config()
		cfg.Gather = gather
		report := r.here.attach(cfg)
		if len(report.Lanes) != spread.MaxPorts || report.Tunnel != "wg0" || len(report.Peers) != 1 {
			r.Errorf("got report %+v, want len(Lanes) %v, Tunnel \"wg0\", len(Peers) 1", report, spread.MaxPorts)
		}
		senders, receiver := r.senders(), r.there.socket(port)
		r.prove(senders, receiver)
		used := map[uint16]bool{}
		for flow, ports := range r.sources(senders, receiver) {
			for p := range ports {
				if !slices.Contains(report.Lanes, p) {
					r.Errorf("flow %d came from port %d, not one of %d", flow, p, report.Lanes)
				}
				used[p] = true
			}
			if len(ports) != 1 {
				r.Errorf("flow %d came from %v", flow, ports)
			}
		}
		if len(used) < fewestPorts {
			r.Errorf("%d flows share the ports %v", flows, used)
		}
		// A peer without ropewalk answers to the source port of the last packet.
		_, err := receiver.WriteToUDPAddrPort(message(0, 0), netip.AddrPortFrom(hereAddr, report.Lanes[0]))
		expect.NoError(r, err)
		expect.NoError(r, senders[0].Close()) // keep one socket: the kernel chooses which one receives
		for _, s := range senders[2:] {
			expect.NoError(r, s.Close())
		}
		_, err = receiver.WriteToUDPAddrPort(message(1, 0), netip.AddrPortFrom(hereAddr, report.Lanes[3]))
		expect.NoError(r, err)
		if a := r.receive(senders[1]); a.from != netip.AddrPortFrom(thereAddr, port) {
			r.Errorf("the answer came from %s", a.from)
		}

		cfg = r.there.config()
		cfg.Gather = gather
		r.there.attach(cfg)
		if st := r.here.status(); st.Counters[programs.EventSpread].Count == 0 {
			r.Error("nothing was spread")
		}
		r.awaitGathered(r.senders(), receiver)
		r.here.detach(0)
		r.there.detach(0)
		r.here.clean()
		r.there.clean()
		for flow, ports := range r.sources(r.senders(), receiver) {
			if !ports[port] || len(ports) != 1 {
				r.Errorf("flow %d, detached, came from %v", flow, ports)
			}
		}
	})
}

func TestSecondAttachChangesInPlace(t *testing.T) {
	eachHook(t, func(r *rig, gather Gather) {
		cfg := r.here.config()
		cfg.Gather = gather
		first, before := r.here.attach(cfg), r.here.status()
		if again := r.here.attach(cfg); !cmp.Equal(first, again, addrs()) {
			r.Errorf("second attach, report (-first +second):\n%s", cmp.Diff(first, again, addrs()))
		}
		after := r.here.status()
		if before.Spread.Program == after.Spread.Program || before.Gather.Program == after.Gather.Program {
			r.Errorf("programs were not replaced: %+v, %+v", before, after)
		}
		before.Spread.Program, before.Gather.Program = after.Spread.Program, after.Gather.Program
		if diff := cmp.Diff(before, after, addrs()); diff != "" || len(after.Problems) > 0 {
			r.Errorf("status changed (-before +after):\n%s\nproblems: %q", diff, after.Problems)
		}
		// Change lanes and peers, and change them back.
		cfg.Lanes, cfg.Ports = 8, spread.Ports{First: 62000, Last: 62100}
		cfg.Peers = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.9:0"), netip.MustParseAddrPort("[2001:db8::7]:51821")}
		other := r.here.attach(cfg)
		if len(other.Lanes) != 8 || other.Lanes[0] != 62000 || other.Peers[0].String() != "192.0.2.9:51820" {
			r.Errorf("got %+v", other)
		}
		st := r.here.status()
		if st.Tunnels[0].Ports != "62000-62007" || len(st.Tunnels[0].Peers) != 2 || st.Tunnels[0].Peers[0].Gather != "62000-62100" {
			r.Errorf("got %+v", st.Tunnels)
		}
		cfg = r.here.config()
		cfg.Gather = gather
		if back := r.here.attach(cfg); !cmp.Equal(first, back, addrs()) {
			r.Errorf("after changing back (-first +back):\n%s", cmp.Diff(first, back, addrs()))
		}
		r.here.detach(0)
		r.here.detach(0)
		r.here.clean()
	})
}

func addrs() cmp.Option {
	return cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
}

// TestUpgradeProcessesEachPacket attaches repeatedly at both ends while a flow sends. Every message must be spread and
// gathered.
func TestUpgradeProcessesEachPacket(t *testing.T) {
	eachHook(t, func(r *rig, gather Gather) {
		here, there := r.here.config(), r.there.config()
		here.Gather, there.Gather = gather, gather
		report := r.here.attach(here)
		sender, receiver := r.here.socket(port), r.there.socket(port)
		r.prove([]*net.UDPConn{sender}, receiver)
		r.flow(sender, receiver, func() { r.here.attach(here) }, func(from uint16) bool { return slices.Contains(report.Lanes, from) })
		r.there.attach(there)
		r.awaitGathered([]*net.UDPConn{sender}, receiver)
		r.flow(sender, receiver, func() { r.there.attach(there) }, func(from uint16) bool { return from == port })
	})
}

// flow sends a flow's messages while do runs several times, and checks the source port of each message.
func (r *rig) flow(sender, receiver *net.UDPConn, do func(), right func(from uint16) bool) {
	r.Helper()
	var stop atomic.Bool
	done := make(chan error)
	go func() {
		var err error
		b := make([]byte, 2048)
		for n := 0; err == nil && (n < 100 || !stop.Load()); n++ {
			err = receiver.SetReadDeadline(time.Now().Add(20 * time.Second))
			if err == nil {
				_, err = sender.WriteToUDPAddrPort(message(0, n), netip.AddrPortFrom(thereAddr, port))
			}
			var from netip.AddrPort
			if err == nil {
				for size := 0; err == nil && size != 96; { // the others are probes
					size, from, err = receiver.ReadFromUDPAddrPort(b)
					if err == nil {
						r.answer(receiver, b[:size], from)
					}
				}
			}
			if err == nil && !right(from.Port()) {
				err = fmt.Errorf("message %d came from %s", n, from)
			}
		}
		done <- err
	}()
	for range 3 {
		do()
	}
	stop.Store(true)
	expect.NoError(r, <-done)
}

func TestAttachRepairsReturnedDevice(t *testing.T) {
	eachHook(t, func(r *rig, gather Gather) {
		cfg := r.here.config()
		cfg.Gather = gather
		report := r.here.attach(cfg)
		r.unplug()
		if st := r.here.status(); st == nil || !strings.Contains(strings.Join(st.Problems, "\n"), "the device is gone") {
			r.Errorf("without the device: got %+v, want non-nil", st)
		}
		r.plug()
		st := r.here.status()
		if st.Spread.State != "defunct" || st.Gather.State != "defunct" || len(st.Problems) != 2 {
			r.Errorf("after the device returned: got %+v, want Spread.State \"defunct\", Gather.State \"defunct\", len(Problems) 2", st)
		}
		r.here.attach(cfg)
		if st := r.here.status(); st.Spread.State != "attached" || st.Gather.State != "attached" || len(st.Problems) > 0 {
			r.Errorf("after attaching again: got %+v, want Spread.State \"attached\", Gather.State \"attached\", no Problems", st)
		}
		senders, receiver := r.senders(), r.there.socket(port)
		r.prove(senders, receiver)
		for flow, ports := range r.sources(senders, receiver) {
			for p := range ports {
				if !slices.Contains(report.Lanes, p) {
					r.Errorf("flow %d came from %d", flow, p)
				}
			}
		}
	})
}

func TestDetachWorksWithoutTheDevice(t *testing.T) {
	eachHook(t, func(r *rig, gather Gather) {
		cfg := r.here.config()
		cfg.Gather = gather
		r.here.attach(cfg)
		r.unplug()
		r.here.detach(0)
		r.here.clean()
	})
}

func TestTunnelsShareADevice(t *testing.T) {
	r := newRig(t)
	second := wg("192.0.2.2:51821")
	second.Name, second.Port = "wg1", 51821
	r.here.finder.set(wg("192.0.2.2:51820"), second)
	a := r.here.attach(r.here.config())
	cfg := r.here.config()
	cfg.Port = 51821
	b := r.here.attach(cfg)
	for _, p := range b.Lanes {
		if slices.Contains(a.Lanes, p) {
			t.Fatalf("both tunnels use port %d", p)
		}
	}
	if st := r.here.status(); len(st.Tunnels) != 2 || st.Tunnels[1].Name != "wg1" || len(st.Problems) > 0 {
		t.Errorf("got status %+v, want len(Tunnels) 2, Tunnels[1].Name \"wg1\", no Problems", st)
	}
	r.here.detach(port)
	if st := r.here.status(); len(st.Tunnels) != 1 || st.Spread.State != "attached" {
		t.Errorf("got status %+v, want len(Tunnels) 1, Spread.State \"attached\"", st)
	}
	r.here.detach(port)
	r.here.detach(51821)
	r.here.clean()
}

func TestGatherCanBeChanged(t *testing.T) {
	r := newRig(t)
	cfg := r.here.config()
	for _, tt := range []struct {
		gather Gather
		kind   string
	}{{GatherXDP, "xdp"}, {GatherTC, ""}, {GatherAuto, ""}, {GatherXDP, "xdp"}} {
		cfg.Gather = tt.gather
		report := r.here.attach(cfg)
		st := r.here.status()
		if tt.kind == "" {
			tt.kind = st.Spread.Kind
		}
		if report.Gather != tt.kind || st.Gather.Kind != tt.kind || st.Gather.Reason == "" || len(st.Problems) > 0 {
			t.Errorf("%s: got %+v, %+v", tt.gather, report, st)
		}
	}
	r.here.detach(0)
	r.here.clean()
}

// gap returns the flowlet gap of a device's programs.
func (s *side) gap() (gap time.Duration) {
	s.r.Helper()
	s.do(func() error {
		p, err := pinsIn(s.host.FS)
		if err != nil {
			return err
		}
		state, err := programs.OpenState(p.state(s.device))
		if err != nil {
			return err
		}
		defer state.Close()
		gap, err = state.Gap()
		return err
	})
	return gap.Truncate(time.Millisecond)
}

// TestSecondTunnelInheritsDeviceSettings checks that unset fields keep the device's settings, also after the device returned.
func TestSecondTunnelInheritsDeviceSettings(t *testing.T) {
	for _, gather := range []Gather{GatherXDP, GatherTC} {
		t.Run(string(gather), func(t *testing.T) {
			r := newRig(t)
			second := wg("192.0.2.2:51821")
			second.Name, second.Port = "wg1", 51821
			r.here.finder.set(wg("192.0.2.2:51820"), second)
			cfg := r.here.config()
			cfg.Gather, cfg.Gap = gather, 7*time.Millisecond
			first := r.here.attach(cfg)
			again := r.here.config()
			again.Port = 51821
			for range 3 { // repeated reads must not change the gap
				if report := r.here.attach(again); report.Gather != first.Gather || r.here.gap() != cfg.Gap {
					t.Fatalf("gather %s, gap %s; want %s, %s", report.Gather, r.here.gap(), first.Gather, cfg.Gap)
				}
			}
			r.unplug()
			r.plug()
			if report := r.here.attach(again); report.Gather != first.Gather || r.here.gap() != cfg.Gap {
				t.Errorf("after the device returned: gather %s, gap %s", report.Gather, r.here.gap())
			}
			again.Gather, again.Gap = GatherAuto, 9*time.Millisecond
			if report := r.here.attach(again); report.Gather == "none" || report.Gather == "xdp" || r.here.gap() != again.Gap {
				t.Errorf("with explicit settings: gather %s, gap %s", report.Gather, r.here.gap())
			}
			r.here.detach(0)
			if r.here.attach(r.here.config()); r.here.gap() != spread.DefaultGap {
				t.Errorf("after a new attach: got gap %s, want %s", r.here.gap(), spread.DefaultGap)
			}
		})
	}
}

// TestFailedAttachIsRolledBack fails before each step: of the first attach, and of one that changes everything.
func TestFailedAttachIsRolledBack(t *testing.T) {
	eachHook(t, func(r *rig, gather Gather) {
		cfg := r.here.config()
		cfg.Gather = gather
		var steps []string
		r.here.host.beforeStep = func(step string) error { steps = append(steps, step); return nil }
		r.here.attach(cfg)
		r.here.detach(0)
		stop := errors.New("stopped")
		failAt := func(want string) func(string) error {
			return func(step string) error {
				if step == want {
					return stop
				}
				return nil
			}
		}
		for _, s := range steps {
			r.here.host.beforeStep = failAt(s)
			if _, err := r.here.try(cfg); !errors.Is(err, stop) {
				r.Errorf("%s: got error %v, want %v", s, err, stop)
			}
			r.here.clean()
		}
		r.here.host.beforeStep = nil
		r.here.attach(cfg)
		before := r.here.status()
		cfg.Lanes, cfg.Ports = 8, spread.Ports{First: 62000, Last: 62100}
		cfg.Peers = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.9:1")}
		for _, s := range steps {
			r.here.host.beforeStep = failAt(s)
			if _, err := r.here.try(cfg); !errors.Is(err, stop) {
				r.Errorf("second attach, step %s: got error %v, want %v", s, err, stop)
			}
			if diff := cmp.Diff(before, r.here.status(), addrs()); diff != "" {
				r.Errorf("second attach, step %s: state changed:\n%s", s, diff)
			}
		}
	})
}

func TestNamespacesKeepSeparatePins(t *testing.T) {
	r := newRig(t)
	r.here.attach(r.here.config())
	if st := r.there.status(); st != nil { // its device has the same name in another namespace
		t.Errorf("unexpected status %+v", st)
	}
	r.there.attach(r.there.config())
	r.here.detach(0)
	if st := r.there.status(); st == nil || st.Spread.State != "attached" || len(st.Problems) > 0 {
		t.Errorf("unexpected status %+v", st)
	}
	r.there.detach(0)
	r.there.clean()
}

// setName renames a device of the side.
func (s *side) setName(from, to string) {
	s.r.Helper()
	s.do(func() error {
		l, err := netlink.LinkByName(from)
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, to))
	})
}

func TestRenamedDeviceIsReported(t *testing.T) {
	eachHook(t, func(r *rig, gather Gather) {
		cfg := r.here.config()
		cfg.Gather = gather
		r.here.attach(cfg)
		r.here.setName(r.here.device, "renamed")
		problems := strings.Join(r.here.status().Problems, "\n")
		if !strings.Contains(problems, "was renamed to renamed or moved") || strings.Contains(problems, "is gone") {
			r.Errorf("no device has the name: got %s, want %q in it", problems, "was renamed to renamed or moved")
		}
		r.here.do(func() error {
			return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: r.here.device}, PeerName: "other"})
		})
		if problems = strings.Join(r.here.status().Problems, "\n"); !strings.Contains(problems, "is attached to renamed") {
			r.Errorf("another device has the name: got %s, want %q in it", problems, "is attached to renamed")
		}
	})
}

func TestRenamedDeviceIsNotAttachedTwice(t *testing.T) {
	eachHook(t, func(r *rig, gather Gather) {
		cfg := r.here.config()
		cfg.Gather = gather
		r.here.attach(cfg)
		before := r.pins()
		r.here.setName(r.here.device, "renamed")
		r.here.device, cfg.Device = "renamed", "renamed"
		r.here.attach(cfg)
		if st := r.here.status(); len(st.Problems) > 0 || len(r.pins()) != len(before) {
			r.Errorf("got problems %q and pins %q, want as many as before: %q", st.Problems, r.pins(), before)
		}
		r.here.detach(0)
		r.here.clean()
	})
}

// withoutSysAdmin runs f on this thread without CAP_SYS_ADMIN, as the systemd unit runs.
func withoutSysAdmin(t *testing.T, f func() error) error {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var all [2]unix.CapUserData
	expect.NoError(t, unix.Capget(&header, &all[0]))
	less := all
	less[0].Effective &^= 1 << unix.CAP_SYS_ADMIN
	expect.NoError(t, unix.Capset(&header, &less[0]))
	defer func() { expect.NoError(t, unix.Capset(&header, &all[0])) }()
	return f()
}

func TestAttachAndStatusNeedNoSysAdmin(t *testing.T) {
	r := newRig(t)
	cfg := r.here.config()
	for _, gap := range []time.Duration{7 * time.Millisecond, 0, 9 * time.Millisecond, 0} {
		cfg.Gap = gap
		r.here.do(func() error {
			return withoutSysAdmin(t, func() error {
				if _, err := r.here.host.Attach(t.Context(), cfg); err != nil {
					return err
				}
				st, err := r.here.host.Status(t.Context(), r.here.device)
				if err == nil && (len(st) != 1 || len(st[0].Problems) > 0) {
					t.Errorf("got status %+v, want one device without Problems", st)
				}
				return err
			})
		})
	}
	if got := r.here.gap(); got != 9*time.Millisecond {
		t.Errorf("got gap %s, want that of the attach before", got)
	}
}

// TestPinsAreReadableByOwnerAlone: the map of peers has the keys of probes.
func TestPinsAreReadableByOwnerAlone(t *testing.T) {
	r := newRig(t)
	r.here.attach(r.here.config())
	root, pins := filepath.Join(r.here.host.FS, "ropewalk"), 0
	expect.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v, want none for others", path, info.Mode())
		}
		if !d.IsDir() {
			pins++
		}
		return err
	}))
	if pins < 8 {
		t.Errorf("got %d pins, want those of all maps and programs", pins)
	}
}
