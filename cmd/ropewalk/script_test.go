// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
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

	"github.com/ropewalk/ropewalk/pkg/netio/reflector"
	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/golden"
)

// TestMain makes this test binary run ropewalk if it is called by that name: by scripts, and by the daemons that they start.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"ropewalk": main, "wireguard-go": main, "ask-reflector": askReflector})
}

// askReflector is a program of scripts. It sends a request to a reflector, and prints "answered", or the error.
func askReflector() {
	err := func() error {
		c, err := net.Dial("udp", os.Args[1])
		if err != nil {
			return err
		}
		defer c.Close()
		nonce := strings.Repeat("n", 16)
		answer := make([]byte, 2*reflector.Size)
		for range 30 { // the first ones may be lost with a session
			if _, err := c.Write([]byte(reflector.Request + nonce)); err != nil {
				return err
			}
			_ = c.SetReadDeadline(time.Now().Add(time.Second))
			n, err := c.Read(answer)
			if err == nil && string(answer[:n]) == reflector.Answer+nonce {
				return errors.New("answered")
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				return fmt.Errorf("%q: %w", answer[:n], err)
			}
		}
		return errors.New("no answer")
	}()
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
