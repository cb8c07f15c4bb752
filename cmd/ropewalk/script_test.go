// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/reflector"
	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/golden"
)

// TestMain makes this test binary run ropewalk if it is called by that name: by scripts, and by the daemons that they start.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"ropewalk": main, "wireguard-go": main, "ask-reflector": askReflector, "fake-reflector": fakeReflector})
}

// askReflector is a program of scripts: `ask-reflector INTERFACE FROM TO PORT SECONDS`. It prints
// "answered" if the reflector of an address answers by the interface in that time, or an error.
func askReflector() {
	err := func() error {
		to := netip.MustParseAddr(os.Args[3])
		port, err := strconv.ParseUint(os.Args[4], 10, 16)
		seconds, secondsErr := strconv.Atoi(os.Args[5])
		if err := errors.Join(err, secondsErr); err != nil {
			return err
		}
		c, err := reflector.NewClient(netip.MustParseAddr(os.Args[2]), uint16(port))
		if err != nil {
			return err
		}
		defer c.Close()
		answered := make(chan struct{}, 1)
		go c.Serve(func() int {
			l, _ := hostnet.FindLink(os.Args[1])
			return l.Index
		}, func(netip.Addr) { answered <- struct{}{} })
		for range seconds { // the first ones may be lost with a session
			if err := c.Ask(to); err != nil {
				return err
			}
			select {
			case <-answered:
				return errors.New("answered")
			case <-time.After(time.Second):
			}
		}
		return errors.New("no answer by the interface")
	}()
	fmt.Println(err)
}

// fakeReflector is a program of scripts: `fake-reflector PORT`. It answers by any interface.
func fakeReflector() {
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }), err)
	}}
	conn, err := c.ListenPacket(context.Background(), "udp4", ":"+os.Args[1])
	for err == nil {
		b := make([]byte, 100)
		var from net.Addr
		if _, from, err = conn.ReadFrom(b); err == nil {
			fmt.Println("asked")
			_, err = conn.WriteTo(append([]byte(reflector.Answer), b[len(reflector.Answer):reflector.Size]...), from)
		}
	}
	fmt.Println(err)
}

// scriptEnv names the script that a child process in new namespaces runs.
const scriptEnv = "ROPEWALK_TEST_SCRIPT"

// TestScripts runs each script in its own network and mount namespace.
func TestScripts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for namespaces")
	}
	scripts, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatal("no scripts: ", err)
	}
	for _, script := range scripts {
		t.Run(strings.TrimSuffix(filepath.Base(script), ".txtar"), func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestScriptInNamespaces$", "-test.v")
			cmd.Env = append(os.Environ(), scriptEnv+"="+script, "GORACE=atexit_sleep_ms=0")
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
			out, err := cmd.CombinedOutput()
			switch {
			case errors.Is(err, unix.EPERM):
				t.Skip("needs namespaces: ", err)
			case strings.Contains(string(out), "--- SKIP"):
				t.Skipf("%s", out)
			case err != nil:
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestScriptInNamespaces is not a test: TestScripts runs it in a child process.
func TestScriptInNamespaces(t *testing.T) {
	script := os.Getenv(scriptEnv)
	if script == "" {
		t.Skip("run by TestScripts")
	}
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		t.Skip("needs TUN devices: ", err)
	}
	f.Close()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	for dir, kind := range map[string]string{"/run": "tmpfs", "/sys/fs/bpf": "bpf"} { // /var/run is a link to /run
		if err := unix.Mount(kind, dir, kind, 0, ""); err != nil {
			t.Skipf("needs %s on %s: %v", kind, dir, err)
		}
	}
	t.Cleanup(func() { // a daemon would live on with its namespaces
		expect.EventuallyNoError(t, "all daemons of the script have ended", func() error {
			if left, _ := filepath.Glob("/run/wireguard/*.sock"); len(left) > 0 {
				return fmt.Errorf("still there: %v", left)
			}
			return nil
		})
	})
	testscript.Run(t, testscript.Params{
		Files: []string{script}, RequireExplicitExec: true, UpdateScripts: golden.Update(),
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

// exits runs a program and checks its exit code: exits 2 ropewalk show …
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	err = ts.Exec(args[1], args[2:]...)
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		got = e.ExitCode()
	} else if err != nil {
		ts.Fatalf("got error %v, want none", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}
