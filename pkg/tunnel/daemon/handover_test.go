// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/daemon/handover"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/namespace"
)

// Environment variables of a daemon process: see TestDaemonProcess.
const (
	daemonEnv   = "ROPEWALK_TEST_DAEMON"   // the name of its interface
	stateDirEnv = "ROPEWALK_TEST_STATE"    // Options.StateDir
	takeoverEnv = "ROPEWALK_TEST_TAKEOVER" // if set, it is the successor of the interface's daemon
	testVersion = "v9"                     // Options.Version
	keepEnv     = "ROPEWALK_TEST_KEEP"     // if set, Options.KeepSocket
)

// TestDaemonProcess is the daemon process of other tests.
func TestDaemonProcess(t *testing.T) {
	name := os.Getenv(daemonEnv)
	if name == "" {
		t.Skip("run by other tests")
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	o := Options{
		Name: name, Version: testVersion, Lanes: 2, Initial: config.Device{Settings: config.Settings{Spread: new(config.SpreadOff)}}, StateDir: os.Getenv(stateDirEnv), KeepSocket: os.Getenv(keepEnv) != "", Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	open := Open
	if os.Getenv(takeoverEnv) != "" {
		open = func(o Options) (*Daemon, error) { return ReceiveHandover(ctx, o) }
	}
	d, err := open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Serve(ctx); err != nil && !errors.Is(err, ErrHandedOver) {
		t.Error(err)
	}
}

// startDaemon starts a process that serves an interface in new namespaces, and returns the interface's name and the process ID.
func startDaemon(t *testing.T) (name string, pid int) {
	t.Helper()
	name = enterForDaemons(t)
	return name, launch(t, name).Process.Pid
}

// enterForDaemons moves the test into new namespaces, and returns a name for an interface there.
func enterForDaemons(t *testing.T) string {
	t.Helper()
	namespace.EnterWithMounts(t)
	if err := unix.Access("/dev/net/tun", unix.R_OK|unix.W_OK); err != nil {
		t.Skip("needs TUN devices: ", err)
	}
	return fmt.Sprintf("rwd%d", os.Getpid())
}

// process is a daemon process.
type process struct {
	*exec.Cmd
	log bytes.Buffer // complete when the process has ended
}

// launch starts a process that serves an interface in the test's namespaces, until it is stopped or the test ends.
func launch(t *testing.T, name string, env ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command("/proc/self/exe", "-test.run=^TestDaemonProcess$")}
	p.Env = append(append(os.Environ(), daemonEnv+"="+name), env...)
	p.Stderr = io.MultiWriter(t.Output(), &p.log)
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // of the thread, which is locked
	expect.NoError(t, p.Start())
	t.Cleanup(func() {
		if p.ProcessState == nil {
			p.stop(t)
		}
	})
	expect.EventuallyNoError(t, "the daemon answers", func() error { return answers(name) })
	return p
}

// stop ends the process in order.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if err := errors.Join(p.Process.Signal(syscall.SIGTERM), p.Wait()); err != nil {
		t.Error(err)
	}
}

// answers fails if the daemon of an interface does not answer.
func answers(name string) error {
	c, err := uapi.Dial(name)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Status()
	return err
}

// TestPredecessorOwnsSocketAgainAfterFailedHandover closes the connection after the successor has owned the socket.
func TestPredecessorOwnsSocketAgainAfterFailedHandover(t *testing.T) {
	name, pid := startDaemon(t)
	c, tunnel := requestFrom(t, name)
	// unix.Listen as in uapi.Listener.Own.
	err := errors.Join(c.RequestCommit(t.Context()), unix.Listen(tunnel.ControlFD, unix.SOMAXCONN))
	if owner := ownerOf(t, name); owner != os.Getpid() {
		t.Errorf("process %d owns the socket, not the successor", owner)
	}
	if err := errors.Join(err, tunnel.CloseFDs(), c.Close(), answers(name)); err != nil { // it answers when it runs again
		t.Fatal(err)
	}
	if owner := ownerOf(t, name); owner != pid {
		t.Errorf("process %d owns the socket, not %d", owner, pid)
	}
}

// socketOf returns the path of the control socket.
func socketOf(name string) string { return filepath.Join(string(uapi.DefaultDir), name+".sock") }

// ownerOf returns the process that listens on the control socket.
func ownerOf(t *testing.T, name string) int {
	t.Helper()
	conn, err := net.Dial("unix", socketOf(name))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return handover.Conn{UnixConn: conn.(*net.UnixConn)}.PID()
}

// TestStoppedPredecessorSendsCountersAndKeepsSocketFile sends SIGTERM to the predecessor between Commit and Serving.
func TestStoppedPredecessorSendsCountersAndKeepsSocketFile(t *testing.T) {
	name, pid := startDaemon(t)
	c, tunnel := requestFrom(t, name)
	if err := errors.Join(c.RequestCommit(t.Context()), unix.Kill(pid, unix.SIGTERM)); err != nil {
		t.Fatal(err)
	}
	expect.EventuallyNoError(t, "the predecessor has got the signal", func() error { return hasNoPendingSignal(pid) })
	if err := c.Send(handover.Serving); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ReceiveCounters(t.Context(), 0); err != nil {
		t.Error("the counters: ", err)
	}
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if owner := ownerOf(t, name); owner != pid { // the successor has not called Own
		t.Errorf("process %d owns the socket, not %d", owner, pid)
	}
	if err := errors.Join(tunnel.CloseFDs(), os.Remove(socketOf(name))); err != nil {
		t.Error(err)
	}
}

// hasNoPendingSignal fails if a signal to the process was not delivered yet.
func hasNoPendingSignal(pid int) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err == nil && !strings.Contains(string(text), "\nShdPnd:\t0000000000000000\n") {
		err = errors.New("a signal is pending")
	}
	return err
}

// TestTunnelThatHasStartedIsNotTakenBack ends the connection as soon as the successor has started the tunnel, as its death does. Only the
// successor knows which handshakes the tunnel has accepted since.
func TestTunnelThatHasStartedIsNotTakenBack(t *testing.T) {
	name, pid := startDaemon(t)
	c := dialPredecessor(t, name)
	end := onMessage{"interface ready", func() { _ = c.Close() }}
	d := newDaemon(Options{Name: name, Lanes: 2, Log: slog.New(end)}.complete(), name)
	if err := d.receiveHandover(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	expect.EventuallyNoError(t, "the predecessor exits", func() error {
		var exited unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &exited, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
		if err == nil && exited.Signo == 0 {
			err = errors.New("it still runs")
		}
		return err
	})
}

// onMessage is a slog.Handler that calls do at a message.
type onMessage struct {
	message string
	do      func()
}

func (onMessage) Enabled(context.Context, slog.Level) bool { return true }
func (h onMessage) WithAttrs([]slog.Attr) slog.Handler     { return h }
func (h onMessage) WithGroup(string) slog.Handler          { return h }

func (h onMessage) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.message {
		h.do()
	}
	return nil
}

// TestHandoverFailsAfterControlSocketIsClosed: without its control socket the successor could not be reached.
func TestHandoverFailsAfterControlSocketIsClosed(t *testing.T) {
	listener, err := uapitest.NewDir(t).Listen("rwd0")
	if err != nil {
		t.Fatal(err)
	}
	predecessor, successor := connPair(t)
	d := &Daemon{log: slog.New(slog.DiscardHandler), listener: listener}
	stopped := &handover.Tunnel{State: handover.State{Name: "rwd0", Device: &device.State{}}}
	if stopped.ControlFD, err = listener.DupFD(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(listener.Close(), successor.Send(handover.Ready)); err != nil {
		t.Fatal(err)
	}
	if err := d.send(predecessor, stopped); !errors.Is(err, net.ErrClosed) {
		t.Errorf("sent: got error %v, want %v", err, net.ErrClosed)
	}
	if err := errors.Join(stopped.CloseFDs(), predecessor.Close()); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(successor)
	if want := "\x00\x00\x00\x02\x00"; err != nil || string(got) != want { // the descriptors, and no Commit
		t.Errorf("sent %q, %v; want %q", got, err, want)
	}
}

// TestFailedRestartRemovesControlSocket has a socket that was disowned for a successor, and a handover that failed.
func TestFailedRestartRemovesControlSocket(t *testing.T) {
	dir := string(uapitest.NewDir(t))
	listener, err := uapi.Dir(dir).Listen("rwd0")
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	d := &Daemon{log: log, listener: listener, done: make(chan struct{})}
	d.tunnel = &tunnel{Device: device.New(device.Config{TUN: tuntest.NewFake(tuntest.FakeConfig{}), Log: log})}
	stopped := &handover.Tunnel{State: handover.State{Name: "rwd0"}} // a tunnel without queues
	if stopped.ControlFD, err = listener.DupFD(); err != nil {
		t.Fatal(err)
	}
	if err := listener.Disown(); err != nil {
		t.Fatal(err)
	}
	d.restartTunnel(stopped)
	<-d.done
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("files that still exist: got %v, error %v, want length 0, no error", left, err)
	}
}

// TestChangesAreSentWhileManyPeersChange sends all of them in one round, and leaves few for the stop.
func TestChangesAreSentWhileManyPeersChange(t *testing.T) {
	for n, want := range map[int][]int{fewChanges: nil, fewChanges + 1: {fewChanges + 1}} {
		a := devicetest.NewLAN(nil).Host(t, 1, devicetest.Options{})
		var c config.Device
		for i := range n {
			c.Peers = append(c.Peers, config.Peer{PublicKey: noise.PublicKey{7, byte(i), byte(i >> 8)}})
		}
		a.Apply(c)
		if _, err := a.Snapshot(); err != nil {
			t.Fatal(err)
		}
		a.TUN.SetUp(false)
		a.Await("the interface is down", func() bool { return !a.Up() })
		predecessor, successor := connPair(t)
		rounds := make(chan []int, 1)
		go func() {
			var sizes []int
			// The end of the connection ends it: this predecessor does not stop the tunnel.
			_ = successor.RequestTunnel(t.Context(), &handover.Tunnel{State: handover.State{Queues: 1}}, func(changes *device.State) error {
				sizes = append(sizes, len(changes.Peers))
				return nil
			})
			rounds <- sizes
		}()
		d := newUpgradeDaemon(nil)
		state := handover.State{Name: "wg0", Queues: 1}
		if err := errors.Join(predecessor.Await(handover.Take, handover.Timeout), d.sendChanges(predecessor, &tunnel{Device: a.Device}, state), predecessor.Close()); err != nil {
			t.Fatal(err)
		}
		if got := <-rounds; !slices.Equal(got, want) {
			t.Errorf("%d peers changed: got rounds of %d, want %d", n, got, want)
		}
	}
}

// TestTakeoverOutlivesPredecessorWithoutCounters has a predecessor that ended before it sent them.
func TestTakeoverOutlivesPredecessorWithoutCounters(t *testing.T) {
	predecessor, successor := connPair(t)
	predecessor.Close()
	a := devicetest.NewLAN(nil).Host(t, 1, devicetest.Options{})
	d := newUpgradeDaemon(nil)
	d.tunnel.Device = a.Device
	d.receiveCounters(t.Context(), successor, 1)
	if !a.Up() {
		t.Error("the tunnel has stopped")
	}
}

func TestSecondHandoverIsRefusedWithoutOffer(t *testing.T) {
	predecessor, successor := connPair(t)
	d := newUpgradeDaemon(nil)
	d.handedOver = true
	if err := d.sendHandover(predecessor.UnixConn); !errors.Is(err, syscall.ENODEV) || !errors.Is(err, ErrHandedOver) {
		t.Error(err)
	}
	predecessor.Close()
	if _, err := successor.RequestSnapshot(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("offer after a handover: got error %v, want %v", err, io.EOF)
	}
}

// TestChangeDuringHandoverIsToBeRepeated has one that has waited for the end of the handover.
func TestChangeDuringHandoverIsToBeRepeated(t *testing.T) {
	d := newUpgradeDaemon(nil)
	d.handedOver = true
	if err := d.Configure(config.Device{}); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("got error %v, want %v", err, syscall.EAGAIN)
	}
}

func TestReceiveHandoverWithoutPredecessorFails(t *testing.T) {
	_, err := ReceiveHandover(t.Context(), Options{Name: "rwnobody", Log: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// connPair returns both ends of a handover connection.
func connPair(t *testing.T) (predecessor, successor handover.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []*handover.Conn{&predecessor, &successor} {
		f := os.NewFile(uintptr(fds[i]), "handover")
		conn, err := net.FileConn(f)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		c.UnixConn = conn.(*net.UnixConn)
		t.Cleanup(func() { _ = c.Close() })
	}
	return predecessor, successor
}

// dialPredecessor requests a handover from the daemon of an interface, and returns the connection. It is closed when the test ends.
func dialPredecessor(t *testing.T, name string) handover.Conn {
	t.Helper()
	client, err := uapi.Dial(name)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := client.RequestHandover()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return handover.Conn{UnixConn: conn}
}

// requestFrom makes the daemon of an interface stop its tunnel and send it, and returns the connection and the tunnel.
func requestFrom(t *testing.T, name string) (handover.Conn, *handover.Tunnel) {
	t.Helper()
	c := dialPredecessor(t, name)
	tunnel, err := c.RequestSnapshot(t.Context())
	if err == nil {
		err = c.RequestTunnel(t.Context(), tunnel, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c, tunnel
}

// TestTakeoverWithTakenReflectorPortFails leaves the tunnel to the predecessor. To repeat it would not help.
func TestTakeoverWithTakenReflectorPortFails(t *testing.T) {
	name, _ := startDaemon(t)
	c, err := net.ListenUDP("udp", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	port := c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	_, err = ReceiveHandover(t.Context(), Options{Name: name, Lanes: 2, Reflect: port, Log: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, ErrUnprepared) || !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("got error %v, want %v", err, syscall.EADDRINUSE)
	}
	if err := answers(name); err != nil {
		t.Error(err)
	}
}

func TestReflectorRefusesThisHost(t *testing.T) {
	a := devicetest.NewLAN(nil).Host(t, 1, devicetest.Options{})
	a.Apply(config.Device{Peers: []config.Peer{{PublicKey: noise.PublicKey{7}, AllowedIPs: []config.AllowedIP{{Prefix: netip.MustParsePrefix("0.0.0.0/0")}}}}})
	d := newUpgradeDaemon(nil)
	d.tunnel.Device = a.Device
	for from, want := range map[string]bool{"127.0.0.1": false, "192.0.2.77": true} {
		if got := d.admitReflection(netip.MustParseAddr(from)); got != want {
			t.Errorf("%s: got %v, want %v", from, got, want)
		}
	}
}
