// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/test/expect"
)

// dir returns the directory of the pins of the side's device.
func (s *side) dir() string {
	s.r.Helper()
	var dir string
	s.do(func() error {
		p, err := pinsIn(s.r.fs)
		dir = p.device(s.device)
		return err
	})
	return dir
}

func (r *rig) foreignMap(path string) {
	r.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	expect.NoError(r, err)
	defer m.Close()
	expect.NoError(r, m.Pin(path))
}

func problems(st *DeviceStatus) string {
	if st == nil {
		return "no status"
	}
	return strings.Join(st.Problems, "\n")
}

// TestForeignPinIsReportedForItsDeviceOnly pins a foreign map at the path of a device's link or map.
func TestForeignPinIsReportedForItsDeviceOnly(t *testing.T) {
	for i, name := range []string{"egress", "ingress", "egress", "ingress", "xdp", "state/state-8/counters"} {
		kind := hook.Best
		if i < 2 {
			kind = hook.Clsact
		}
		t.Run(name+" "+kind.String(), func(t *testing.T) {
			r := newRig(t)
			r.here.host.kind = kind
			r.here.attach(r.here.config())
			pin := filepath.Join(r.here.dir(), name)
			if _, err := os.Lstat(pin); err == nil {
				expect.NoError(r, os.Remove(pin))
			}
			r.foreignMap(pin)
			var all []DeviceStatus
			r.here.do(func() (err error) {
				if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "zwei"}, PeerName: "other"}); err != nil {
					return err
				}
				expect.NoError(r, os.MkdirAll(filepath.Join(filepath.Dir(r.here.dir()), "zwei", "state"), 0o700))
				all, err = r.here.host.Status(t.Context(), "")
				return err
			})
			remove := "`rm -r " + pin + "`"
			if len(all) != 2 || !strings.Contains(problems(&all[0]), remove) || strings.Contains(problems(&all[1]), remove) {
				t.Errorf("got %+v, want length 2", all)
			}
			if name != "egress" && all[0].Spread.State != "attached" || name == "egress" && all[0].Spread.State != UnknownState {
				t.Errorf("got %+v", all[0])
			}
			if _, err := r.here.try(r.here.config()); err == nil || !strings.Contains(err.Error(), pin) {
				t.Errorf("attach: got error %v, want an error", err)
			}
			if strings.HasPrefix(name, "state") {
				return
			}
			var err error
			r.here.do(func() error { err = r.here.host.Detach(t.Context(), 0); return nil })
			if err == nil || !strings.Contains(err.Error(), remove) {
				t.Errorf("detach: got error %v, want an error", err)
			}
			expect.NoError(r, os.Remove(pin))
			r.here.detach(0)
			if _, err := os.Lstat(r.here.dir()); err == nil {
				t.Error("not detached")
			}
		})
	}
}

func TestRemovedStateIsReportedAndRestored(t *testing.T) {
	r := newRig(t)
	r.here.attach(r.here.config())
	state := filepath.Join(filepath.Dir(r.here.dir()), sharedPin)
	expect.NoError(r, os.Remove(filepath.Join(state, "state-8", "peers")))
	if got := problems(r.here.status()); !strings.Contains(got, "pins are missing in") || strings.Contains(got, "version") {
		t.Errorf("one map removed: got %s, want %q in it", got, "pins are missing in")
	}
	r.here.attach(r.here.config())
	if got := problems(r.here.status()); got != "" {
		t.Errorf("after attaching again: got %s, want %q", got, "")
	}
	expect.NoError(r, os.Rename(filepath.Join(state, "state-8"), filepath.Join(state, "state-9")))
	if got := problems(r.here.status()); !strings.Contains(got, "by another version of ropewalk") {
		t.Errorf("other layout: got %s, want %q in it", got, "by another version of ropewalk")
	}
	expect.NoError(r, os.RemoveAll(state))
	if got := problems(r.here.status()); !strings.Contains(got, "pins are missing in") {
		t.Errorf("all maps removed: got %s, want %q in it", got, "pins are missing in")
	}
}

func TestUnrelatedDirectoryIsNotADevice(t *testing.T) {
	r := newRig(t)
	r.here.attach(r.here.config())
	net := filepath.Dir(r.here.dir())
	expect.NoError(r, os.Mkdir(filepath.Join(net, "unrelated"), 0o700))
	r.foreignMap(filepath.Join(net, "map"))
	r.here.do(func() error {
		all, err := r.here.host.Status(t.Context(), "")
		if len(all) != 1 || all[0].Device != r.here.device || len(all[0].Problems) > 0 {
			t.Errorf("got %+v, want length 1", all)
		}
		return err
	})
}

func TestInvalidPeerEndpointsAreRejected(t *testing.T) {
	r := newRig(t)
	for _, tt := range []struct{ peer, want string }{
		{"255.255.255.255", "is not a valid peer address"},
		{"::ffff:255.255.255.255", "is not a valid peer address"},
		{"224.0.0.7", "is not a valid peer address"},
		{"ff02::1", "is not a valid peer address"},
		{"127.0.0.7", "is not a valid peer address"},
		{"::1", "is not a valid peer address"},
		{"0.0.0.0", "is not a valid peer address"},
		{"192.0.2.1", "it is this host's"},
		{"::ffff:192.0.2.1", "it is this host's"},
		{"fe80::7%other", "is on another device than cable.7"},
		{"fe80:0:0:7::7", "is not a valid peer address"},
	} {
		cfg := r.here.config()
		cfg.Peers = []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(tt.peer), 0)}
		if _, err := r.here.try(cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.peer, err, tt.want)
		}
	}
	cfg := r.here.config()
	for _, peer := range []string{"fe80::7", "fe80::7%" + r.here.device} {
		cfg.Peers = []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(peer), 0)}
		if report := r.here.attach(cfg); fmt.Sprint(report.Peers) != "[[fe80::7%cable.7]:51820]" {
			t.Errorf("unexpected report: %+v", report)
		}
	}
}

// TestStalePinsAreReported: only if nothing is attached and no process is in the namespace.
func TestStalePinsAreReported(t *testing.T) {
	r := newRig(t)
	linked := r.there.attach(r.there.config()).Spread != "clsact" // pins of clsact filters do not record their device
	leftovers := func() (left []string) {
		r.here.do(func() (err error) {
			left, err = r.here.host.StalePins()
			return err
		})
		return left
	}
	gone := filepath.Join(r.fs, "ropewalk", "spread", "net-7")
	if left := leftovers(); len(left) > 0 {
		t.Errorf("pins of a live namespace reported: %q", left)
	}
	expect.NoError(r, unix.Rename(filepath.Dir(r.there.dir()), gone))
	if _, err := os.Lstat(filepath.Join(gone, filepath.Base(r.there.dir()), "egress")); err != nil {
		t.Fatal(err)
	}
	if left := leftovers(); len(left) > 0 && linked {
		t.Errorf("pins with an attached device reported: %q", left)
	}
	r.unplug()
	if left := leftovers(); len(left) != 1 || left[0] != gone {
		t.Errorf("got %q, want %s", left, gone)
	}
	expect.NoError(r, os.RemoveAll(gone))
}
