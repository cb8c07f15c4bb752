// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.zx2c4.com/wireguard/conn"
	wgdevice "golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/ipc"
	wgtun "golang.zx2c4.com/wireguard/tun"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/lab/demo"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
)

// demoDaemonEnv makes a child process of this test binary a daemon: see TestDemoDaemonProcess.
const demoDaemonEnv = "ROPEWALK_TEST_DAEMON"

// readsBeforeExit is the number of TUN reads after which the daemon "exiting" ends.
const readsBeforeExit = 50

// TestDemoDaemonProcess is not a test: it is the daemon process of the other tests, ropewalk or wireguard-go.
func TestDemoDaemonProcess(t *testing.T) {
	kind := os.Getenv(demoDaemonEnv)
	if kind == "" {
		t.Skip("run by the tests of the demo")
	}
	iface := os.Args[len(os.Args)-1]
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	if kind == "ropewalk" {
		root := newRootCmd()
		root.SetArgs([]string{"run", iface})
		if err := root.ExecuteContext(ctx); err != nil {
			t.Fatal(err)
		}
		return
	}
	serveReference(t, ctx, iface, kind == "exiting")
}

// exitingTUN ends the process after some reads.
type exitingTUN struct {
	wgtun.Device
	reads atomic.Int64
}

func (e *exitingTUN) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	if e.reads.Add(1) > readsBeforeExit {
		os.Exit(3)
	}
	return e.Device.Read(bufs, sizes, offset)
}

func serveReference(t *testing.T, ctx context.Context, iface string, exiting bool) {
	dev, err := wgtun.CreateTUN(iface, 1420)
	if err != nil {
		t.Fatal(err)
	}
	if exiting {
		dev = &exitingTUN{Device: dev}
	}
	file, err := ipc.UAPIOpen(iface)
	if err != nil {
		t.Fatal(err)
	}
	device := wgdevice.NewDevice(dev, conn.NewDefaultBind(), wgdevice.NewLogger(wgdevice.LogLevelSilent, ""))
	defer device.Close()
	listener, err := ipc.UAPIListen(iface, file)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go device.IpcHandle(c)
		}
	}()
	<-ctx.Done()
}

// demoWith returns options whose daemon is this binary. Its kind is "ropewalk", "reference" (wireguard-go) or "exiting" (wireguard-go that
// ends after readsBeforeExit reads). It skips the test without privileges.
func demoWith(t *testing.T, kind string) demoOptions {
	t.Helper()
	lab, err := netlab.New("probe")
	if err == nil {
		_, err = lab.Host("a")
		err = errors.Join(err, lab.Close())
	}
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("the demo needs a TUN device: %v", err)
	}
	t.Setenv(demoDaemonEnv, kind)
	before := demoLeftovers(t)
	t.Cleanup(func() {
		for _, path := range demoLeftovers(t) {
			if !strings.Contains(strings.Join(before, " "), path) {
				t.Errorf("the demo left %s", path)
			}
		}
	})
	return demoOptions{
		seconds: 1, streams: 3, queues: 4, json: true, daemon: "/proc/self/exe -test.run=^TestDemoDaemonProcess$",
	}
}

func demoLeftovers(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{
		"/run/netns/demo-*", "/run/ropewalk/netlab/demo-*", filepath.Join(string(uapi.DefaultDir), "rw?????[lr].sock"),
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, paths...)
	}
	return all
}

func TestDemoPassesWithBothImplementations(t *testing.T) {
	for _, kind := range []string{"ropewalk", "reference"} {
		t.Run(kind, func(t *testing.T) {
			o := demoWith(t, kind)
			var out bytes.Buffer
			if err := demoMain(t.Context(), &out, o); err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			var r demo.Report
			if err := json.Unmarshal(out.Bytes(), &r); err != nil {
				t.Fatal(err)
			}
			if !r.OK || len(r.Runs) == 0 || r.Cable.Data == 0 || r.Ping.Latency == nil {
				t.Errorf("got %s", out.String())
			}
			if spreads := len(r.Runs) == 2; spreads != (kind == "ropewalk") {
				t.Errorf("%d runs", len(r.Runs))
			}
			if (r.Left != nil) != (kind == "ropewalk") {
				t.Errorf("statistics %+v", r.Left)
			}
			if r.Left != nil && (len(r.Left.Lanes) == 0 || len(r.Right.Lanes) == 0) {
				t.Errorf("no lanes: %s", out.String())
			}
		})
	}
}

func TestDemoCleansUpWhenInterrupted(t *testing.T) {
	o := demoWith(t, "reference")
	o.json, o.seconds = false, 3600
	ctx, cancel := context.WithCancel(t.Context())
	out := &cancelOn{text: "TCP", cancel: cancel}
	err := demoMain(ctx, out, o)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("got error %v, want %v, and one containing \"interrupted\"", err, context.Canceled)
	}
}

// cancelOn is a writer that calls cancel when text is written to it.
type cancelOn struct {
	text   string
	cancel func()
}

func (c *cancelOn) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(c.text)) {
		c.cancel()
	}
	return len(p), nil
}

func TestDemoReportsDaemonThatEnds(t *testing.T) {
	o := demoWith(t, "exiting")
	o.seconds = 3600
	err := demoMain(t.Context(), &bytes.Buffer{}, o)
	if err == nil || !strings.Contains(err.Error(), "exited unexpectedly") {
		t.Errorf("got error %v, want one containing \"exited unexpectedly\"", err)
	}
}

func TestDemoShowsOutputOfFailedDaemon(t *testing.T) {
	o := demoWith(t, "reference") // o.daemon replaces it
	script := filepath.Join(t.TempDir(), "daemon")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho no such luck >&2\nexit 4\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	o.daemon = script
	err := demoMain(t.Context(), &bytes.Buffer{}, o)
	if err == nil || !strings.Contains(err.Error(), "no such luck") || !strings.Contains(err.Error(), "exit status 4") {
		t.Errorf("got error %v, want one containing \"no such luck\" and \"exit status 4\"", err)
	}
}

func TestDemoRejectsInvalidOptions(t *testing.T) {
	good := demoOptions{seconds: 1, streams: 1, queues: 1, daemon: "x"}
	if err := good.check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*demoOptions){
		"no time":          func(o *demoOptions) { o.seconds = 0 },
		"negative time":    func(o *demoOptions) { o.seconds = -1 },
		"no stream":        func(o *demoOptions) { o.streams = 0 },
		"too many streams": func(o *demoOptions) { o.streams = 100_000 },
		"no queue":         func(o *demoOptions) { o.queues = 0 },
		"too many queues":  func(o *demoOptions) { o.queues = 100_000 },
		"no daemon":        func(o *demoOptions) { o.daemon = " " },
	} {
		o := good
		change(&o)
		var usage usageError
		if err := demoMain(t.Context(), &bytes.Buffer{}, o); !errors.As(err, &usage) {
			t.Errorf("%s: got error %v", name, err)
		}
	}
}
