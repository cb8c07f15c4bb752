// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// daemon is a WireGuard implementation that runs as a process. The kernel kills it when the test process dies.
type daemon struct {
	cmd    *exec.Cmd
	host   *host
	log    lockedBuffer
	exited chan struct{} // closed when err is set
	err    error
}

// startDaemon runs a daemon in the host. stop returns an error if the daemon exited before or exits with an error. If the test
// fails, the daemon's output and its goroutine stacks are logged.
func startDaemon(t *testing.T, h *host, argv ...string) (stop func() error) {
	t.Helper()
	_, stop = launch(t, h, nil, argv...)
	return stop
}

// launch is startDaemon with additional environment variables. It also returns the daemon.
func launch(t *testing.T, h *host, env []string, argv ...string) (d *daemon, stop func() error) {
	t.Helper()
	d = &daemon{cmd: exec.Command(argv[0], argv[1:]...), host: h, exited: make(chan struct{})}
	d.cmd.Env = append(os.Environ(), env...)
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	started := make(chan error)
	go d.run(started)
	expect.NoError(t, <-started)
	t.Cleanup(func() {
		if t.Failed() {
			_ = d.end(unix.SIGQUIT) // the Go runtime prints all stacks
			t.Logf("%s wrote:\n%s", d, d.log.String())
		}
	})
	return d, func() error {
		if d.hasExited() {
			return fmt.Errorf("%s exited before it was stopped: %s", d, d.cmd.ProcessState)
		}
		return d.end(unix.SIGTERM)
	}
}

// run starts the daemon in its host, and waits for it. The kernel kills the daemon when the thread that started it ends (Pdeathsig), so this
// is a thread of its own. It is never unlocked, and ends with the daemon.
func (d *daemon) run(started chan<- error) {
	runtime.LockOSThread()
	if err := netns.Set(d.host.ns); err != nil {
		started <- fmt.Errorf("entering host %s: %w", d.host.name, err)
		return
	}
	if err := d.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	d.err = d.cmd.Wait()
	close(d.exited)
}

func (d *daemon) String() string { return d.cmd.Path + " on host " + d.host.name }

func (d *daemon) hasExited() bool {
	select {
	case <-d.exited:
		return true
	default:
		return false
	}
}

// end sends a signal, as an init system does, and kills the daemon if it does not exit.
func (d *daemon) end(sig syscall.Signal) error {
	if d.hasExited() {
		return d.err
	}
	if err := d.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("sending %s to %s: %w", sig, d, err)
	}
	select {
	case <-d.exited:
		if d.err != nil {
			return fmt.Errorf("%s after %s: %w", d, sig, d.err)
		}
		return nil
	case <-time.After(patience):
		_ = d.cmd.Process.Kill()
		<-d.exited
		return fmt.Errorf("%s ignored %s for %s", d, sig, patience)
	}
}

// lockedBuffer is a bytes.Buffer that is safe to read while a process writes to it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
