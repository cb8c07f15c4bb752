// SPDX-License-Identifier: Apache-2.0

package package_test

import (
	"bufio"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience limits waits for expected events.
const patience = 60 * time.Second

// manager is a fake service manager: a notification socket, and namespaces for its services.
type manager struct {
	t      *testing.T
	socket *net.UnixConn
	holder int      // process that holds the services' network and mount namespaces
	seen   []string // received messages
}

func newManager(t *testing.T) *manager {
	t.Helper()
	needRoot(t)
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	m := &manager{t: t, socket: socket}
	holder := exec.Command("unshare", "--net", "--mount", "bash", "-ec", "mount -t tmpfs tmpfs /run; ip link set lo up; echo; exec sleep infinity")
	out, err := holder.StdoutPipe()
	if err == nil {
		err = holder.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = holder.Process.Kill()
		_ = holder.Wait()
	})
	if _, err := bufio.NewReader(out).ReadByte(); err != nil {
		t.Skip("needs namespaces: ", err)
	}
	m.holder = holder.Process.Pid
	return m
}

// command returns a ropewalk command that runs as a service with a watchdog.
func (m *manager) command(args ...string) *exec.Cmd {
	enter := []string{"-t", strconv.Itoa(m.holder), "--net", "--mount", program(m.t)}
	cmd := exec.Command("nsenter", append(enter, args...)...)
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+m.socket.LocalAddr().String(), "WATCHDOG_USEC=300000")
	return cmd
}

func (m *manager) run(args ...string) {
	m.t.Helper()
	if out, err := m.command(args...).CombinedOutput(); err != nil {
		m.t.Fatalf("%q: %v\n%s", args, err, out)
	}
}

// receive returns the next message, or false after the timeout within.
func (m *manager) receive(within time.Duration) (string, bool) {
	m.t.Helper()
	var b [4096]byte
	if err := m.socket.SetReadDeadline(time.Now().Add(within)); err != nil {
		m.t.Fatal(err)
	}
	n, err := m.socket.Read(b[:])
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return "", false
	}
	if err != nil {
		m.t.Fatal(err)
	}
	m.seen = append(m.seen, string(b[:n]))
	return string(b[:n]), true
}

// await waits for a message with a line that begins with line.
func (m *manager) await(line string) string {
	m.t.Helper()
	for {
		message, ok := m.receive(patience)
		if !ok {
			m.t.Fatalf("no message %q after %q", line, m.seen)
		}
		if strings.Contains("\n"+message, "\n"+line) {
			return message
		}
	}
}

func TestDaemonNotifiesServiceManager(t *testing.T) {
	m := newManager(t)
	daemon := m.command("run", "rwp0")
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	m.await("READY=1")
	m.await("WATCHDOG=1")
	if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	m.await("STOPPING=1")
	if err := daemon.Wait(); err != nil {
		t.Error(err)
	}
}

func TestTunnelCommandsNotifyServiceManager(t *testing.T) {
	m := newManager(t)
	conf := filepath.Join(t.TempDir(), "rwp0.conf")
	if err := os.WriteFile(conf, []byte("[Interface]\nAddress = 10.99.0.1/32\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.run("up", conf)
	ready := m.await("MAINPID=")
	if !strings.Contains(ready, "\nREADY=1") {
		t.Errorf("message %q has MAINPID without READY=1", ready)
	}
	for _, message := range m.seen[:len(m.seen)-1] {
		if strings.Contains(message, "READY=1") {
			t.Errorf("message %q came before the interface had its addresses", message)
		}
	}
	m.await("WATCHDOG=1")
	m.run("reload", conf)
	if message := m.await("RELOADING=1"); !strings.Contains(message, "\nMONOTONIC_USEC=") {
		t.Errorf("message %q has no MONOTONIC_USEC (sd_notify(3))", message)
	}
	m.await("READY=1")
	m.await("WATCHDOG=1")

	m.stall("rwp0")
	for range 5 {
		m.await("WATCHDOG=1")
	}
	show := m.hideSocket("rwp0")
	for ok := true; ok; _, ok = m.receive(10 * time.Millisecond) { // discard earlier messages
	}
	// Up to two health checks may have started before the socket was hidden.
	notifications := 0
	for message, ok := m.receive(time.Second); ok; message, ok = m.receive(time.Second) {
		if strings.Contains(message, "WATCHDOG=1") {
			notifications++
		}
		if notifications > 2 {
			t.Fatal("WATCHDOG=1 was sent although the control socket did not answer")
		}
	}
	show()
	m.await("WATCHDOG=1")
	m.run("down", conf)
	m.await("STOPPING=1")
}

// socketOf returns the path of an interface's control socket, as this process sees it.
func (m *manager) socketOf(name string) string {
	return "/proc/" + strconv.Itoa(m.holder) + "/root/run/wireguard/" + name + ".sock"
}

// stall opens as many control connections as the daemon serves at once, and sends part of a request on each.
func (m *manager) stall(name string) {
	m.t.Helper()
	for range 64 { // maxConns of pkg/control/uapi
		c, err := net.Dial("unix", m.socketOf(name))
		if err == nil {
			m.t.Cleanup(func() { c.Close() })
			_, err = c.Write([]byte("g"))
		}
		if err != nil {
			m.t.Fatal(err)
		}
	}
}

// hideSocket renames the control socket, so that nobody can connect to it, until show is called.
func (m *manager) hideSocket(name string) (show func()) {
	m.t.Helper()
	from, to := m.socketOf(name), m.socketOf(name)+".hidden"
	if err := os.Rename(from, to); err != nil {
		m.t.Fatal(err)
	}
	return func() {
		if err := os.Rename(to, from); err != nil {
			m.t.Fatal(err)
		}
	}
}
