// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// slowDevice goes by UDP until it has said so a few times.
type slowDevice struct {
	uapitest.Device
	asked atomic.Int32
}

func (d *slowDevice) Stats() any {
	if d.asked.Add(1) > 3 {
		return show.Stats{Path: &config.UnderlayReport{Path: config.UnderlayXDP}}
	}
	return show.Stats{Path: &config.UnderlayReport{Path: config.UnderlayUDP, Reason: "no device for AF_XDP"}}
}

// serveSide returns a side whose daemon is that device.
func serveSide(t *testing.T, h uapi.Handler) *testbed.Side {
	t.Helper()
	lab, hosts := netlabtest.Hosts(t, "bench", "a") // for its tag: sockets of all namespaces lie in one directory
	daemon, err := testbed.StartProcess(t.Context(), hosts[0], "sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	s := &testbed.Side{Iface: "rb" + lab.Tag() + "a", Daemon: daemon}
	l, err := uapi.DefaultDir.Listen(s.Iface)
	if err != nil {
		t.Fatal(errors.Join(err, daemon.Stop()))
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- (&uapi.Server{Handler: h, Log: slog.New(slog.DiscardHandler)}).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-served, daemon.Stop()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestUnderlaySwitchEndsWhenTrafficUsesNewUnderlay(t *testing.T) {
	d := &slowDevice{}
	s := serveSide(t, d)
	if err := switchUnderlay(t.Context(), nil, s, 1); err != nil {
		t.Fatal(err)
	}
	if asked, changes := d.asked.Load(), d.TakeChanges(); asked != 4 || len(changes) != 1 || *changes[0].Underlay != config.UnderlayXDP {
		t.Errorf("asked %d times, changes %+v", asked, changes)
	}
}

func TestUnavailableUnderlayReportsReason(t *testing.T) {
	d := &uapitest.Device{}
	d.SetStats(show.Stats{Path: &config.UnderlayReport{Path: config.UnderlayUDP, Reason: "no device for AF_XDP"}})
	s := serveSide(t, d)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // in place of testbed.ReadyLimit
	err := switchUnderlay(ctx, nil, s, 1)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "underlay udp instead of xdp: no device for AF_XDP") {
		t.Errorf("err = %v", err)
	}
	if err := switchUnderlay(ctx, nil, s, 0); err != nil {
		t.Errorf("to UDP: %v", err)
	}
}

// TestUpgradeFailsWhenOldDaemonFails: one that panics while it hands over is no success.
func TestUpgradeFailsWhenOldDaemonFails(t *testing.T) {
	_, hosts := netlabtest.Hosts(t, "bench", "a")
	for status, fault := range []string{"", "exit status 1; it last wrote:\n  a panic"} {
		fifo := filepath.Join(t.TempDir(), "handover")
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		// The old one ends when the new one, which has the flag, has come.
		script := fmt.Sprintf("case $0 in --takeover) echo > %s; exec sleep 1000;; esac; read x < %[1]s; echo a panic; exit %d", fifo, status)
		old, err := testbed.StartProcess(t.Context(), hosts[0], "/bin/sh", "-c", script, "rb0")
		if err != nil {
			t.Fatal(err)
		}
		s := &testbed.Side{Host: hosts[0], Iface: "rb0", Daemon: old}
		err = upgrade(t.Context(), nil, s, 0)
		if (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("exit status %d: %v, want %q", status, err, fault)
		}
		if s.Daemon == old {
			t.Error("the old daemon is still the side's")
		}
		if err := errors.Join(s.Daemon.Stop(), old.Stop()); (err == nil) != (fault == "") {
			t.Error(err)
		}
	}
}
