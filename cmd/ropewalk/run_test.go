// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/test/expect"
)

func TestRunRejectsInvalidFlagValues(t *testing.T) {
	for _, tc := range []struct{ flag, value, want string }{
		{"--spread", "sometimes", "want auto, off or on"},
		{"--spread-ports", "61000", "want two ports, such as 61000-61999"},
		{"--spread-ports", "80-90", "range 80-90 has privileged ports, below 1024, in it"},
		{"--spread-ports", "3000-2000", "range 3000-2000 ends before it begins"},
		{"--lanes", "257", "want 1 to 256"},
		{"--nice", "-21", "want -20 to 19"},
		{"--nice", "20", "want -20 to 19"},
		{"--workers", "65", "want auto, or 0 to 64"},
		{"--workers", "-1", "want auto, or 0 to 64"},
		{"--workers", "some", "want auto, or 0 to 64"},
	} {
		_, _, err := execute(t, newRootCmd(), "", "run", tc.flag, tc.value, "wg0")
		if err == nil || exitCode(err) != exitUsage || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.value) {
			t.Errorf("%s %s: got error %v, want an error", tc.flag, tc.value, err)
		}
	}
}

// TestDaemonGetsFlagsOfItsParent parses the arguments that `run --daemon` passes on.
func TestDaemonGetsFlagsOfItsParent(t *testing.T) {
	given := []string{
		"-d", "--lanes", "3", "--nice", "-5", "--workers", "auto", "--mtu=1380", "--spread", "on", "--spread-ports", "62000-62063", "--spray", "4",
		"--log-level", "debug", "--log-format", "json", "--metrics", "127.0.0.1:9820", "--metrics-per-peer", "off", "--metrics-config", "web.yml",
		"--underlay", "udp", "--underlay-device", "eth1", "--outer-fragments", "on",
	}
	parent, child := newRunCmd(), newRunCmd()
	expect.NoError(t, parent.ParseFlags(given))
	args, err := foregroundArgs(parent.Flags(), "wg%d")
	expect.NoError(t, err)
	if args[0] != "run" || !slices.Equal(args[len(args)-2:], []string{"--", "wg%d"}) {
		t.Fatalf("got arguments %q", args)
	}
	expect.NoError(t, child.ParseFlags(args[1:]))
	parent.Flags().VisitAll(func(f *pflag.Flag) {
		want := f.Value.String()
		switch f.Name {
		case "daemon":
			want = "false"
		case "metrics-config":
			want, err = filepath.Abs("web.yml")
			expect.NoError(t, err)
		}
		if got := child.Flags().Lookup(f.Name).Value.String(); got != want {
			t.Errorf("--%s: got %q, want %q", f.Name, got, want)
		}
	})
}

func TestWireGuardGoCommandLines(t *testing.T) {
	root := newRootCmd()
	for _, tt := range []struct {
		program, args, env, want string
	}{
		{"/usr/bin/wireguard-go", "wg0", "", "run --daemon -- wg0"},
		{"wireguard-go", "-f wg0", "", "run -- wg0"},
		{"wireguard-go", "--foreground home", "", "run -- home"},
		{"wireguard-go", "up", "", "run --daemon -- up"},
		{"wireguard-go", "wg0", "WG_PROCESS_FOREGROUND=1", "run -- wg0"},
		{"wireguard-go", "--version", "", "--version"},
		{"wireguard-go", "", "", ""},
		{"ropewalk", "wg0", "", "run --daemon -- wg0"},
		{"ropewalk", "-f wg0", "", "run -- wg0"},
		{"ropewalk", "up", "", "up"},
		{"ropewalk", "up wg0", "", "up wg0"},
		{"ropewalk", "home", "", "home"},
		{"ropewalk", "home", "WG_QUICK_USERSPACE_IMPLEMENTATION=ropewalk", "run --daemon -- home"},
		{"ropewalk", "up", "WG_QUICK_USERSPACE_IMPLEMENTATION=ropewalk", "up"},
		{"ropewalk", "help", "WG_QUICK_USERSPACE_IMPLEMENTATION=ropewalk", "help"},
		{"ropewalk", "vpn", "WG_QUICK_USERSPACE_IMPLEMENTATION=ropewalk", "run --daemon -- vpn"},
		{"ropewalk", "tun0", "WG_QUICK_USERSPACE_IMPLEMENTATION=ropewalk", "run --daemon -- tun0"},
		{"ropewalk", "shwo0", "", "shwo0"},
		{"ropewalk", "10.0.0.1", "", "10.0.0.1"},
		{"ropewalk", "fe80::1", "", "fe80::1"},
		{"ropewalk", "vpn1.example.org", "", "vpn1.example.org"},
		{"ropewalk", "51820", "", "51820"},
		{"ropewalk", "home-1", "", "run --daemon -- home-1"},
	} {
		name, value, _ := strings.Cut(tt.env, "=")
		getenv := func(asked string) string {
			if asked == name {
				return value
			}
			return ""
		}
		got := strings.Join(wireguardGoArgs(tt.program, strings.Fields(tt.args), isCommandOf(root), isLikeCommandOf(root), getenv), " ")
		if got != tt.want {
			t.Errorf("%s %s (%s): got %q, want %q", tt.program, tt.args, tt.env, got, tt.want)
		}
	}
}

// TestBackgroundStartNeedsAnswer has a daemon that says it is ready, and whose control socket does not answer.
func TestBackgroundStartNeedsAnswer(t *testing.T) {
	silent := errors.New("it does not answer")
	for _, want := range []error{nil, silent} {
		ready, theirs, err := os.Pipe()
		expect.NoError(t, err)
		log, err := os.Create(filepath.Join(t.TempDir(), "log"))
		expect.NoError(t, err)
		process := exec.Command("sleep", "60")
		expect.NoError(t, process.Start())
		_, err = theirs.WriteString("wg7")
		expect.NoError(t, errors.Join(err, theirs.Close()))
		name, err := awaitReady(t.Context(), process, ready, log, "wg%d", func(name string) error {
			if name != "wg7" {
				t.Errorf("got name %q, want wg7", name)
			}
			return want
		})
		if !errors.Is(err, want) || want == nil && name != "wg7" {
			t.Errorf("got name %q, error %v, want %v", name, err, want)
		}
		if want == nil {
			_ = process.Process.Kill()
			_ = process.Wait()
		} else if process.ProcessState == nil {
			t.Error("the daemon was not ended")
		}
		expect.NoError(t, errors.Join(ready.Close(), log.Close()))
	}
}

// TestSlowDaemonIsEndedOnlyWithItsStarter has a daemon that says it is ready, and does not answer until it ends.
func TestSlowDaemonIsEndedOnlyWithItsStarter(t *testing.T) {
	ready, theirs, err := os.Pipe()
	expect.NoError(t, err)
	defer ready.Close()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	expect.NoError(t, err)
	defer log.Close()
	process := exec.Command("sh", "-c", "trap 'echo removed its socket; exit 3' TERM; echo; while :; do sleep 0.1; done")
	process.Stdout = log
	expect.NoError(t, process.Start())
	_, err = theirs.WriteString("wg7")
	expect.NoError(t, errors.Join(err, theirs.Close()))
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	_, err = awaitReady(ctx, process, ready, log, "wg7", func(string) error {
		expect.Eventually(t, "the daemon to begin", func() bool {
			info, err := log.Stat()
			return err == nil && info.Size() > 0
		})
		cancel(interrupted)
		return errors.New("its end closes the connection, which the daemon does before it ends")
	})
	if !errors.Is(err, interrupted) || !strings.Contains(err.Error(), "removed its socket") {
		t.Errorf("got %v", err)
	}
}

// busyDevice is a device whose status waits for a peer.
type busyDevice struct {
	uapitest.Device
	wait chan struct{}
}

func (d *busyDevice) Status() config.Status {
	<-d.wait
	return config.Status{}
}

func TestBusyDaemonAnswersItsStarter(t *testing.T) {
	dir, dev := uapitest.NewDir(t), &busyDevice{wait: make(chan struct{})}
	t.Cleanup(func() { close(dev.wait) })
	uapitest.RunServer(t, dir, "wg7", &uapi.Server{Handler: dev, Level: new(slog.LevelVar), Log: slog.New(slog.DiscardHandler)})
	expect.NoError(t, answersSocket(dir, "wg7"))
}
