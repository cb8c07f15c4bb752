// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/quick"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/test/namespace"
)

// quickDaemonEnv makes a child process of this test binary run `ropewalk run NAME`: see TestQuickDaemonProcess.
const quickDaemonEnv = "ROPEWALK_TEST_QUICK_DAEMON"

// TestQuickDaemonProcess is not a test: it is the daemon process of TestUpRunsDaemonAndDownEndsIt.
func TestQuickDaemonProcess(t *testing.T) {
	if os.Getenv(quickDaemonEnv) == "" {
		t.Skip("run by TestUpRunsDaemonAndDownEndsIt")
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	root := newRootCmd()
	root.SetArgs(append([]string{"run"}, os.Args[slices.Index(os.Args, "--")+1:]...))
	if err := root.ExecuteContext(ctx); err != nil {
		t.Fatal(err)
	}
}

// writeConf writes NAME.conf, readable by its owner only.
func writeConf(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const quickConf = "[Interface]\nPrivateKey = " + manualPrivate + "\n# addresses\nAddress = 10.9.0.1/24\nMTU = 1300\nListenPort = 0\n" +
	"Lanes = 3\nSpread = off\nSpreadPorts = 2000-3000\n" +
	"[Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\nAllowedIPs = 0.0.0.0/0\n"

func TestStripMatchesWgQuickStrip(t *testing.T) {
	path := writeConf(t, "wg0", quickConf)
	stdout, stderr, err := execute(t, newStripCmd(), "", path)
	want := "[Interface]\nPrivateKey = " + manualPrivate + "\n# addresses\nListenPort = 0\n" +
		"[Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\nAllowedIPs = 0.0.0.0/0\n\n"
	if stdout != want || stderr != "" || err != nil {
		t.Errorf("got %q, %q, error %v, want %q, %q, no error", stdout, stderr, err, want, "")
	}
}

func TestQuickCommandsReportInvalidFiles(t *testing.T) {
	bad := writeConf(t, "wg0", "[Interface]\nAddress = nowhere\n")
	for _, newCmd := range []func() *cobra.Command{newUpCmd, newDownCmd, newSaveCmd, newStripCmd} {
		name := newCmd().Name()
		if _, _, err := execute(t, newCmd(), "", filepath.Dir(bad)+"/absent.conf"); !errors.Is(err, quick.ErrNoFile) {
			t.Errorf("%s, no file: got %v", name, err)
		}
		if _, _, err := execute(t, newCmd(), "", "/dev/null"); !errors.Is(err, conffile.ErrName) {
			t.Errorf("%s, not NAME.conf: got %v", name, err)
		}
		if _, _, err := execute(t, newCmd(), ""); exitCode(err) != exitUsage {
			t.Errorf("%s, no argument: got %v", name, err)
		}
		if name == "down" { // takes an interface of this name down, whatever is in the file
			continue
		}
		_, _, err := execute(t, newCmd(), "", bad)
		if line, ok := errors.AsType[*conffile.LineError](err); name != "strip" && (!ok || line.Line != 2) {
			t.Errorf("%s, bad file: got %v", name, err)
		}
	}
}

func TestQuickCommandsWarnAboutWorldAccessibleFile(t *testing.T) {
	path := writeConf(t, "absent0", quickConf)
	if err := errors.Join(os.Chmod(path, 0o644), os.Chmod(filepath.Dir(path), 0o755)); err != nil {
		t.Fatal(err)
	}
	_, stderr, err := execute(t, newSaveCmd(), "", path)
	if want := "Warning: `" + path + "' is world accessible\n"; !strings.HasPrefix(stderr, want) {
		t.Errorf("got %q, want prefix %q", stderr, want)
	}
	if !errors.Is(err, quick.ErrNotWireGuard) {
		t.Errorf("got error %v, want %v", err, quick.ErrNotWireGuard)
	}
}

func TestUpRunsDaemonAndDownEndsIt(t *testing.T) {
	enterNetworkNamespace(t)
	name := fmt.Sprintf("rwu%d", os.Getpid())
	i, err := quick.Open("", writeConf(t, name, quickConf))
	if err != nil {
		t.Fatal(err)
	}
	cmd := newUpCmd()
	var echo bytes.Buffer
	cmd.SetErr(&echo)
	r, err := newRunner(cmd)
	if err != nil {
		t.Fatal(err)
	}
	r.RunDir = t.TempDir()
	r.Daemon = func(name string, flags []string) *exec.Cmd {
		daemon := exec.Command("/proc/self/exe", append(append([]string{"-test.run=^TestQuickDaemonProcess$", "--"}, flags...), name)...)
		daemon.Env = append(os.Environ(), quickDaemonEnv+"=1", "GORACE=atexit_sleep_ms=0")
		return daemon
	}
	if err := r.Up(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	checkInterface(t, name)
	if err := r.Down(t.Context(), i); err != nil {
		t.Error(err)
	}
	if _, err := uapi.Dial(name); !uapi.IsNotRunning(err) {
		t.Errorf("after down: %v", err)
	}
}

// checkInterface checks the interface in the kernel and on the control socket.
func checkInterface(t *testing.T, name string) {
	t.Helper()
	link, err := hostnet.FindLink(name)
	if err != nil || !link.Up || link.MTU != 1300 {
		t.Errorf("got %+v, error %v, want no error", link, err)
	}
	c, err := uapi.Dial(name)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var stats struct{ Lanes []any }
	if err := c.Stats(&stats); err != nil || len(stats.Lanes) != 3 {
		t.Errorf("%d lanes, %v", len(stats.Lanes), err)
	}
	st, err := c.Status()
	if err != nil || st.PublicKey.Base64() != manualPublic || st.FwMark != 51820 || len(st.Peers) != 1 || st.ListenPort == 0 {
		t.Errorf("got %+v, error %v, want no error", st, err)
	}
}

// enterNetworkNamespace moves the test into a new network namespace, which ends with its goroutine.
func enterNetworkNamespace(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("needs root and TUN devices: %v", err)
	}
	f.Close()
	namespace.Enter(t)
}
