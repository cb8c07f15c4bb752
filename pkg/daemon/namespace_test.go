// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestATunnelOfAnotherNetworkNamespaceIsNotTaken: what the new daemon opened would be in its own.
func TestATunnelOfAnotherNetworkNamespaceIsNotTaken(t *testing.T) {
	fd := listening(t)
	if err := livesHere(fd); err != nil {
		t.Errorf("a socket of here: %v", err)
	}
	enterNamespaces(t)
	if err := livesHere(fd); !errors.Is(err, errElsewhere) {
		t.Errorf("a socket of elsewhere: %v", err)
	}
	if err := livesHere(-1); err != nil {
		t.Errorf("where it cannot be known: %v", err)
	}
}

func TestAProcessOfAnotherNetworkNamespaceIsKnown(t *testing.T) {
	there := process(t)
	enterNamespaces(t)
	if err := worksHere(there); !errors.Is(err, errElsewhere) {
		t.Errorf("a process of elsewhere: %v", err)
	}
	for about, pid := range map[string]int{"one of here": process(t), "of another PID namespace": 0, "none": -1} {
		if err := worksHere(pid); err != nil {
			t.Errorf("%s: %v", about, err)
		}
	}
}

// process is one in the thread's namespaces, until the test ends.
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

// TestATunnelOfAnotherNetworkNamespaceIsNotStopped, as it would only be to be refused. Both daemons are this process, and the new one's
// thread has left the namespace; it must not be the first one, which stands for the process.
func TestATunnelOfAnotherNetworkNamespaceIsNotStopped(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Gettid() == os.Getpid() {
		t.Run("on another thread", TestATunnelOfAnotherNetworkNamespaceIsNotStopped)
		return
	}
	enterNamespaces(t)
	old, heir := links(t)
	if err := old.offer(); err != nil {
		t.Fatal(err)
	}
	if _, err := awaitTunnel(t.Context(), heir); !errors.Is(err, errElsewhere) {
		t.Errorf("taken from elsewhere: %v", err)
	}
	heir.Close()
	if err := old.hear(sayTake, calmTime); !isEnd(err) {
		t.Errorf("the other daemon is asked to stop: %v", err)
	}
}

// listening is the descriptor of a socket.
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
