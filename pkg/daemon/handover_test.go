// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	"github.com/ropewalk/ropewalk/pkg/device"
	"github.com/ropewalk/ropewalk/pkg/uapi"
	"github.com/ropewalk/ropewalk/pkg/uapi/uapitest"
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
	if err := d.Serve(ctx); err != nil && !errors.Is(err, ErrHandedOver) {
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
	l, fds := receiveFrom(t, name)
	err := errors.Join(l.say(sayReady), l.hear(sayYours, calmTime), unix.Listen(fds[1], unix.SOMAXCONN)) // as uapi.Listener.Own
	if owner := ownerOf(t, name); owner != os.Getpid() {
		t.Errorf("process %d has the socket, not the new daemon", owner)
	}
	if err := errors.Join(err, closeAll(fds), l.Close(), answers(name)); err != nil { // it answers when it goes on
		t.Fatal(err)
	}
	if owner := ownerOf(t, name); owner != pid {
		t.Errorf("process %d has the socket, not %d", owner, pid)
	}
}

// socketOf is the path of the control socket.
func socketOf(name string) string { return filepath.Join(string(uapi.DefaultDir), name+".sock") }

// ownerOf is the process that listens on the control socket.
func ownerOf(t *testing.T, name string) int {
	t.Helper()
	conn, err := net.Dial("unix", socketOf(name))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return pidOf(conn.(*net.UnixConn))
}

// TestADaemonThatIsStoppedInTheHandOverLeavesTheControlSocket to the one that was told that the tunnel is its.
func TestADaemonThatIsStoppedInTheHandOverLeavesTheControlSocket(t *testing.T) {
	name, pid := startDaemon(t)
	l, fds := receiveFrom(t, name)
	if err := errors.Join(l.say(sayReady), l.hear(sayYours, calmTime), unix.Kill(pid, unix.SIGTERM)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if owner := ownerOf(t, name); owner != pid { // as nobody has made it its own
		t.Errorf("process %d has the socket, not %d", owner, pid)
	}
	if err := errors.Join(closeAll(fds), os.Remove(socketOf(name))); err != nil {
		t.Error(err)
	}
}

// TestNothingIsGivenOnceTheControlSocketIsGone: the other daemon could not be reached.
func TestNothingIsGivenOnceTheControlSocketIsGone(t *testing.T) {
	listener, err := uapitest.NewDir(t).Listen("rwd0")
	if err != nil {
		t.Fatal(err)
	}
	here, there := linked(t)
	d := &Daemon{log: slog.New(slog.DiscardHandler), listener: listener}
	given := make(chan error, 1)
	k := &kept{control: -1, handoff: handoff{Name: "rwd0", Queues: 1, state: &device.State{}}}
	if k.control, err = listener.Keep(); err != nil {
		t.Fatal(err)
	}
	go func() { given <- d.give(here, k) }()
	fds, err := there.receive()
	if err = errors.Join(err, listener.Close(), closeAll(fds), there.say(sayReady)); err != nil {
		t.Fatal(err)
	}
	if err := <-given; !errors.Is(err, net.ErrClosed) {
		t.Errorf("given: %v", err)
	}
	if err := errors.Join(closeAll(k.fds()), here.Close()); err != nil {
		t.Fatal(err)
	}
	if err := there.hear(sayYours, calmTime); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// TestATunnelThatCannotGoOnLeavesNoControlSocket: it was left to the other daemon, which has not taken it.
func TestATunnelThatCannotGoOnLeavesNoControlSocket(t *testing.T) {
	dir := string(uapitest.NewDir(t))
	listener, err := uapi.Dir(dir).Listen("rwd0")
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{log: slog.New(slog.DiscardHandler), listener: listener, ended: make(chan struct{})}
	k := &kept{control: -1, handoff: handoff{Name: "rwd0"}} // a tunnel without queues
	if k.control, err = listener.Keep(); err != nil {
		t.Fatal(err)
	}
	if err := listener.Leave(); err != nil {
		t.Fatal(err)
	}
	d.goOn(k)
	<-d.ended
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestADaemonThatHasHandedOverOffersNothing(t *testing.T) {
	here, there := linked(t)
	d := upgradable(nil)
	d.left = true
	if err := d.handOver(here.UnixConn); !errors.Is(err, syscall.ENODEV) || !errors.Is(err, ErrHandedOver) {
		t.Error(err)
	}
	if err := errors.Join(here.Close(), there.hearOffer()); !errors.Is(err, io.EOF) {
		t.Errorf("it offers: %v", err)
	}
}

// linked are the two ends of a link.
func linked(t *testing.T) (here, there link) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range []*link{&here, &there} {
		f := os.NewFile(uintptr(fds[i]), "link")
		conn, err := net.FileConn(f)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		l.UnixConn = conn.(*net.UnixConn)
		t.Cleanup(func() { _ = l.Close() })
	}
	return here, there
}

// receiveFrom has the daemon of an interface rest and send everything, and returns the link and the descriptors.
func receiveFrom(t *testing.T, name string) (l link, fds []int) {
	t.Helper()
	c, err := uapi.Dial(name)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := c.TakeOver()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	l = link{conn}
	if err := errors.Join(l.hearOffer(), l.say(sayTake)); err != nil {
		t.Fatal(err)
	}
	if fds, err = l.receive(); err != nil {
		t.Fatal(errors.Join(err, closeAll(fds)))
	}
	return l, fds
}
