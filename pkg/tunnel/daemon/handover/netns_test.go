// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/namespace"
)

func TestSocketOfAnotherNetNSIsRefused(t *testing.T) {
	fd := listening(t)
	if err := checkSocketNetNS(fd); err != nil {
		t.Errorf("a socket of this namespace: %v", err)
	}
	namespace.EnterWithMounts(t)
	if err := checkSocketNetNS(fd); !errors.Is(err, errOtherNetNS) {
		t.Errorf("a socket of another namespace: got error %v, want %v", err, errOtherNetNS)
	}
	if err := checkSocketNetNS(-1); err != nil {
		t.Errorf("an unknown namespace: %v", err)
	}
}

func TestProcessOfAnotherNetNSIsRefused(t *testing.T) {
	there := process(t)
	namespace.EnterWithMounts(t)
	if err := checkProcessNetNS(there); !errors.Is(err, errOtherNetNS) {
		t.Errorf("a process of another namespace: got error %v, want %v", err, errOtherNetNS)
	}
	for name, pid := range map[string]int{"same namespace": process(t), "another PID namespace": 0, "no process": -1} {
		if err := checkProcessNetNS(pid); err != nil {
			t.Errorf("%s: got error %v, want none", name, err)
		}
	}
}

// process starts a process in the thread's namespaces, which ends with the test.
func process(t *testing.T) (pid int) {
	t.Helper()
	c := exec.Command("cat")
	in, err := c.StdinPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = in.Close(), c.Wait() })
	return c.Process.Pid
}

// TestTunnelOfAnotherNetNSIsNotStopped checks that the successor refuses before Take, which stops the tunnel. Both sides are this process.
// The successor's thread has left the namespace. It must not be the main thread, whose namespace is that of the process in /proc.
func TestTunnelOfAnotherNetNSIsNotStopped(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Gettid() == os.Getpid() {
		t.Run("on another thread", TestTunnelOfAnotherNetNSIsNotStopped)
		return
	}
	namespace.EnterWithMounts(t)
	predecessor, successor := connPair(t)
	if err := predecessor.Offer(); err != nil {
		t.Fatal(err)
	}
	if _, err := successor.RequestSnapshot(t.Context()); !errors.Is(err, errOtherNetNS) {
		t.Errorf("requested from another namespace: got error %v, want %v", err, errOtherNetNS)
	}
	successor.Close()
	if err := predecessor.Await(Prepare, Timeout); !IsClosed(err) {
		t.Errorf("the predecessor was asked to stop: %v", err)
	}
}

// listening returns the descriptor of a listening socket.
func listening(t *testing.T) (fd int) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	raw, err := l.(*net.UnixListener).SyscallConn()
	if err == nil {
		err = raw.Control(func(of uintptr) { fd = int(of) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}
