// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/quick"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

func TestWatchdogIsNotifiedOnlyWhileDeviceAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var logged bytes.Buffer
		var notifications atomic.Int32
		var failing atomic.Bool
		stuck := make(chan struct{})
		w := watchdog{
			period: time.Second, notify: func() { notifications.Add(1) }, log: slog.New(slog.NewTextHandler(&logged, nil)),
			check: func() error {
				if failing.Load() {
					return errors.New("no answer")
				}
				<-stuck
				return nil
			},
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.run(ctx)
		}()
		expect := func(want int32, when string) {
			t.Helper()
			synctest.Wait()
			if n := notifications.Load(); n != want {
				t.Errorf("%s: got %d notifications, want %d", when, n, want)
			}
		}
		time.Sleep(10 * time.Second)
		expect(0, "while a check blocks")
		close(stuck)
		expect(2, "after it passed, and the one that was due meanwhile")
		time.Sleep(3500 * time.Millisecond)
		expect(5, "while checks pass")
		failing.Store(true)
		time.Sleep(10 * time.Second)
		expect(5, "while checks fail")
		if !strings.Contains(logged.String(), "no answer") {
			t.Errorf("log: got %q, want %q in it", logged.String(), "no answer")
		}
		cancel()
		<-done
	})
}

func TestHealthCheckNeedsAnswerAndLaneThreads(t *testing.T) {
	dir := uapi.Dir(t.TempDir())
	threads := []string{"main", "rw-tx0", "rw-tx1", "rw-rx0", "rw-rx1"}
	check := &healthCheck{socket: dir, name: "rwt0", threads: func() ([]string, error) { return threads, nil }}
	if err := check.check(); !uapi.IsNotRunning(err) {
		t.Errorf("without a daemon: %v", err)
	}
	l, err := dir.Listen("rwt0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	device := &lanesDevice{lanes: 2}
	device.up.Store(true)
	go func() { served <- uapi.Serve(ctx, l, device) }()
	if err := check.check(); err != nil {
		t.Error(err)
	}
	threads = slices.Delete(threads, 2, 3)
	if err := check.check(); err == nil || !strings.Contains(err.Error(), "of 2 lanes, 1 transmit and 2 receive") {
		t.Errorf("with a lane that has stopped: got error %v, want an error", err)
	}
	threads = []string{"rw-tx0", "rw-tx1"}
	device.up.Store(false)
	device.stalled.Store(true)
	if err := check.check(); err == nil || !strings.Contains(err.Error(), "lanes make no progress: rx1") {
		t.Errorf("with a lane that makes no progress: got error %v, want an error", err)
	}
	device.stalled.Store(false)
	if err := check.check(); err != nil {
		t.Errorf("an interface that is down has no receive threads: %v", err)
	}
	threads = []string{"ropewalk"}
	if err := check.check(); err != nil {
		t.Errorf("a lane reads nothing before its interface was up: %v", err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestHealthCheckIgnoresThreadsWithoutNames(t *testing.T) {
	check := &healthCheck{threads: func() ([]string, error) { return []string{"ropewalk"}, nil }}
	for range 3 {
		if err := check.checkLoops(2, true); err != nil {
			t.Error(err)
		}
	}
	names, err := threadNames()
	if err != nil || len(names) == 0 {
		t.Errorf("got %q, error %v, want no error", names, err)
	}
}

// lanesDevice is a device with a number of lanes.
type lanesDevice struct {
	lanes       int
	up, stalled atomic.Bool
}

func (*lanesDevice) Status() config.Status         { return config.Status{} }
func (*lanesDevice) Configure(config.Device) error { return nil }

func (d *lanesDevice) Stats() any {
	var stalls config.StallReport
	if d.stalled.Load() {
		stalls.Lanes = []string{"rx1"}
	}
	return map[string]any{"up": d.up.Load(), "lanes": make([]struct{}, d.lanes), "stalls": stalls}
}

func TestPrivateKeyCredentialIsUsedAndNeverSaved(t *testing.T) {
	key, other := noise.PrivateKey{1}, noise.PrivateKey{2}
	for name, tc := range map[string]struct {
		file string // contents of the credential, "-" for none
		in   conffile.Interface
		want *noise.PrivateKey
		err  string
	}{
		"none":                        {file: "-", in: conffile.Interface{PrivateKey: &other}, want: &other},
		"none and no key in the file": {file: "-"},
		"one":                         {file: key.Base64() + "\n", want: &key},
		"the same key in the file":    {file: key.Base64(), in: conffile.Interface{PrivateKey: &key}, want: &key},
		"another key in the file":     {file: key.Base64(), in: conffile.Interface{PrivateKey: &other}, err: "differs from the systemd credential"},
		"with SaveConfig":             {file: key.Base64(), in: conffile.Interface{SaveConfig: true}, err: "SaveConfig"},
		"an empty file":               {file: "", err: "is empty"},
		"an invalid key":              {file: key.Base64()[1:], err: "one base64 key"},
	} {
		dir := t.TempDir()
		if tc.file != "-" {
			if err := os.WriteFile(filepath.Join(dir, privateKeyCredential), []byte(tc.file), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f := &conffile.File{Interface: tc.in}
		err := useCredential(dir, f)
		if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%s: got %v, want %q", name, err, tc.err)
		}
		if err != nil && (strings.Contains(err.Error(), key.Base64()[1:20]) || strings.Contains(err.Error(), other.Base64()[:20])) {
			t.Errorf("%s: the error contains the key", name)
		}
		if got := f.Interface.PrivateKey; tc.err == "" && (got == nil) != (tc.want == nil) || tc.err == "" && got != nil && *got != *tc.want {
			t.Errorf("%s: wrong key", name)
		}
	}
	if err := useCredential("", &conffile.File{}); err != nil {
		t.Error(err)
	}
}

func TestReloadKeepsSettingsMissingInFile(t *testing.T) {
	port := uint16(51820)
	keep, drop := noise.PublicKey{1}, noise.PublicKey{2}
	f := &conffile.File{Peers: []conffile.Peer{{PublicKey: keep, AllowedIPs: []config.AllowedIP{{Prefix: netip.MustParsePrefix("10.0.0.1/32")}}}}}
	f.Interface.ListenPort = &port
	dev, err := quick.Resync(t.Context(), f, nil, []config.PeerStatus{{PublicKey: keep}, {PublicKey: drop}})
	if err != nil {
		t.Fatal(err)
	}
	if dev.PrivateKey != nil || dev.FwMark != nil || dev.Spread != nil || dev.SpreadPorts != nil || dev.ReplacePeers {
		t.Errorf("removes settings that the file does not mention: %+v", dev)
	}
	if dev.ListenPort != &port || len(dev.Peers) != 2 || !dev.Peers[0].Remove || dev.Peers[0].PublicKey != drop || dev.Peers[1].PublicKey != keep {
		t.Errorf("got %+v", dev)
	}
}

func TestDaemonInheritsWatchdogAndJournal(t *testing.T) {
	var st syscall.Stat_t
	if err := syscall.Fstat(2, &st); err != nil {
		t.Fatal(err)
	}
	for stream, journal := range map[string]bool{"": false, "1:2": false, fmt.Sprintf("%d:%d", st.Dev, st.Ino): true} {
		t.Setenv("JOURNAL_STREAM", stream)
		t.Setenv("WATCHDOG_PID", "1")
		t.Setenv("WATCHDOG_USEC", "3000000")
		cmd := exec.Command("true")
		passServiceContext(cmd)
		env := strings.Join(cmd.Env, "\n") + "\n"
		if strings.Contains(env, "WATCHDOG_PID") || !strings.Contains(env, "WATCHDOG_USEC=3000000\n") || !strings.Contains(env, startedByUp+"=1\n") {
			t.Errorf("%q: got %s, want no %q in it", stream, env, "WATCHDOG_PID")
		}
		if got := strings.Contains(env, logFromUp+"=1\n"); got != journal || (len(cmd.ExtraFiles) == 1) != journal {
			t.Errorf("%q: the journal is passed on: got %v, want %v", stream, got, journal)
		}
	}
}

func TestOnlyProcessStartedByManagerIsService(t *testing.T) {
	self := strconv.Itoa(os.Getpid())
	for _, tc := range []struct {
		socket, started string
		want            bool
	}{{"", "", false}, {"", self, false}, {"/run/x", "", true}, {"/run/x", self, true}, {"/run/x", "1", false}} {
		t.Setenv("NOTIFY_SOCKET", tc.socket)
		t.Setenv("SYSTEMD_EXEC_PID", tc.started)
		if got := isService(); got != tc.want {
			t.Errorf("%+v: got %v, want %v", tc, got, tc.want)
		}
	}
}

// TestRemovedSocketEndsNoDaemonOfUnit covers the daemon that a unit starts, and the one that it starts in the background (Type=forking).
func TestRemovedSocketEndsNoDaemonOfUnit(t *testing.T) {
	self := strconv.Itoa(os.Getpid())
	for name, tc := range map[string]struct {
		env  map[string]string
		want bool
	}{
		"shell":                      {nil, false},
		"Type=simple":                {map[string]string{"SYSTEMD_EXEC_PID": self}, true},
		"Type=notify":                {map[string]string{"SYSTEMD_EXEC_PID": self, "NOTIFY_SOCKET": "/run/x"}, true},
		"Type=notify, older systemd": {map[string]string{"NOTIFY_SOCKET": "/run/x"}, true},
		"up":                         {map[string]string{keepSocket: "1"}, true},
		// innernet and others, which are units themselves, stop a tunnel by the removal of its socket.
		"another program of a unit": {map[string]string{"SYSTEMD_EXEC_PID": "1", "NOTIFY_SOCKET": "/run/x"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, v := range []string{"SYSTEMD_EXEC_PID", "NOTIFY_SOCKET", keepSocket, startedByUp} {
				t.Setenv(v, tc.env[v])
			}
			o, err := (&runOptions{}).daemon("rwnobody", slog.New(slog.DiscardHandler), nil)
			if err != nil || o.KeepSocket != tc.want {
				t.Errorf("the daemon keeps its socket: got %v, %v, want %v", o.KeepSocket, err, tc.want)
			}
			if got := slices.Contains(backgroundEnv(), keepSocket+"=1"); got != tc.want {
				t.Errorf("a daemon in the background keeps its socket: got %v, want %v", got, tc.want)
			}
		})
	}
}

// TestOnlyServiceDaemonsNotifyUpgrades covers the daemon and its successors.
func TestOnlyServiceDaemonsNotifyUpgrades(t *testing.T) {
	path := filepath.Join(string(uapitest.NewDir(t)), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	if err := manager.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	receive := func() string {
		t.Helper()
		sdNotify(slog.New(slog.DiscardHandler), "end") // so that there is always a message to read
		b := make([]byte, 100)
		n, err := manager.Read(b)
		if err == nil && string(b[:n]) != "end" {
			_, err = manager.Read(make([]byte, 100))
		}
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	self := strconv.Itoa(os.Getpid())
	for name, tc := range map[string]struct {
		env  map[string]string
		want string
	}{
		"run by the manager":      {map[string]string{"SYSTEMD_EXEC_PID": self, "WATCHDOG_PID": self}, "MAINPID=7"},
		"run by an older manager": {map[string]string{"WATCHDOG_PID": self}, "MAINPID=7"},
		"up by the manager":       {map[string]string{"SYSTEMD_EXEC_PID": "1", startedByUp: "1"}, "MAINPID=7"},
		"up by a hook of it":      {map[string]string{"SYSTEMD_EXEC_PID": "1", "WATCHDOG_PID": "1"}, "end"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NOTIFY_SOCKET", manager.LocalAddr().String())
			for _, name := range []string{"SYSTEMD_EXEC_PID", "WATCHDOG_PID", startedByUp} {
				t.Setenv(name, "") // restored after the test
			}
			for name, value := range tc.env {
				t.Setenv(name, value)
			}
			for generation := range 3 {
				announceSuccessor(slog.New(slog.DiscardHandler), "rwnobody", 7)
				if got := receive(); got != tc.want {
					t.Errorf("daemon %d: got %q, want %q", generation, got, tc.want)
				}
				setEnv(t, successorEnv(os.Environ()))
				if os.Getenv("SYSTEMD_EXEC_PID") == self {
					t.Setenv("SYSTEMD_EXEC_PID", "1") // the successor has another process ID
				}
			}
		})
	}
}

// setEnv sets the environment of this process to env until the test ends.
func setEnv(t *testing.T, env []string) {
	t.Helper()
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if !slices.Contains(env, v) {
			t.Setenv(name, "")
		}
	}
}

func TestCheckKnowsCredentialsOfSystemd(t *testing.T) {
	key := noise.PrivateKey{1}
	peer := "[Peer]\nPublicKey = " + noise.PublicKey{2}.Base64() + "\n"
	for name, tc := range map[string]struct {
		credential, text, want string
		code                   int
	}{
		"none":                    {"", key.Base64(), "no PrivateKey in [Interface]", exitWarnings},
		"one":                     {"etc/credstore/ropewalk.rwk0.private-key", key.Base64(), "nothing found, private key from the credential ", 0},
		"of another interface":    {"etc/credstore/ropewalk.wg1.private-key", key.Base64(), "no PrivateKey in [Interface]", exitWarnings},
		"encrypted":               {"etc/credstore.encrypted/ropewalk.rwk0", "sealed", "nothing found, private key from the credential ", 0},
		"invalid":                 {"run/credstore/ropewalk.rwk0.private-key", "none", "one base64 key", exitFailed},
		"of the peer, not of us":  {"etc/credstore/ropewalk.rwk0.private-key", noise.PrivateKey{3}.Base64(), "has the public key of this interface", exitWarnings},
		"empty, of a failed task": {"etc/credstore/ropewalk.rwk0.private-key", "", "is empty", exitFailed},
	} {
		root, file := t.TempDir(), "[Interface]\n"+peer
		if strings.Contains(name, "of the peer") {
			file = "[Interface]\n[Peer]\nPublicKey = " + noise.PrivateKey{3}.Public().Base64() + "\n"
		}
		if path := filepath.Join(root, tc.credential); tc.credential != "" {
			expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			expect.NoError(t, os.WriteFile(path, []byte(tc.text), 0o600))
		}
		cmd := newCheckCmd()
		cmd.RunE = func(cmd *cobra.Command, args []string) error { return checkFile(cmd, t.TempDir(), root, args[0]) }
		stdout, _, err := execute(t, cmd, "", writeConf(t, "rwk0", file))
		if !strings.Contains(stdout, tc.want) || tc.code == 0 && err != nil || tc.code != 0 && (err == nil || exitCode(err) != tc.code) {
			t.Errorf("%s: got %q, error %v, want %q, code %d", name, stdout, err, tc.want, tc.code)
		}
	}
}
