// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/uapi"
)

// daemonEnv makes this test binary, run again, the daemon of an interface: see TestDaemonProcess.
const daemonEnv = "ROPEWALK_TEST_DAEMON"

// TestDaemonProcess is no test but the daemon of others.
func TestDaemonProcess(t *testing.T) {
	name := os.Getenv(daemonEnv)
	if name == "" {
		t.Skip("run by other tests")
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	d, err := Open(Options{Name: name, Lanes: 2, Spread: config.SpreadOff, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Serve(ctx); err != nil {
		t.Error(err)
	}
}

// startDaemon has another process serve an interface, in network namespaces of the test's own, and returns both.
func startDaemon(t *testing.T) (name string, pid int) {
	t.Helper()
	enterNamespaces(t)
	if err := unix.Access("/dev/net/tun", unix.R_OK|unix.W_OK); err != nil {
		t.Skip("needs TUN devices: ", err)
	}
	name = fmt.Sprintf("rwd%d", os.Getpid())
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestDaemonProcess$")
	cmd.Env = append(os.Environ(), daemonEnv+"="+name)
	cmd.Stderr = t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // of the thread, which is locked
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil {
			t.Error(err)
		}
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := answers(name)
		if err == nil {
			return name, cmd.Process.Pid
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// answers waits for the daemon of an interface to answer.
func answers(name string) error {
	c, err := uapi.Dial(name)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Status()
	return err
}

// TestTheControlSocketOfATunnelThatGoesOnIsItsDaemons has a new daemon die when it has made the socket its own.
func TestTheControlSocketOfATunnelThatGoesOnIsItsDaemons(t *testing.T) {
	name, pid := startDaemon(t)
	c, err := uapi.Dial(name)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := c.TakeOver()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	l := link{conn}
	if err := errors.Join(l.hearOffer(), l.say(sayTake)); err != nil {
		t.Fatal(err)
	}
	fds, err := l.receive()
	if err != nil {
		t.Fatal(errors.Join(err, closeAll(fds)))
	}
	err = errors.Join(l.say(sayReady), l.hear(sayYours, calmTime), unix.Listen(fds[1], unix.SOMAXCONN)) // as uapi.Listener.Own
	if owner := ownerOf(t, name); owner != os.Getpid() {
		t.Errorf("process %d has the socket, not the new daemon", owner)
	}
	if err := errors.Join(err, closeAll(fds), conn.Close(), answers(name)); err != nil { // it answers when it goes on
		t.Fatal(err)
	}
	if owner := ownerOf(t, name); owner != pid {
		t.Errorf("process %d has the socket, not %d", owner, pid)
	}
}

// ownerOf is the process that listens on the control socket.
func ownerOf(t *testing.T, name string) int {
	t.Helper()
	conn, err := net.Dial("unix", filepath.Join(string(uapi.DefaultDir), name+".sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return pidOf(conn.(*net.UnixConn))
}
