// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// daemon is a WireGuard that runs as a process. It dies with the test process, whatever ends that.
type daemon struct {
	cmd    *exec.Cmd
	host   *host
	log    lockedBuffer
	exited chan struct{} // closed when err is set
	err    error
}

// startDaemon runs a daemon in the host and returns how to stop it: it must have lived until then, and must end without
// an error. When the test fails, what the daemon wrote is shown, and behind it where its goroutines were.
func startDaemon(t *testing.T, h *host, argv ...string) (stop func() error) {
	t.Helper()
	_, stop = launch(t, h, nil, argv...)
	return stop
}

// launch is startDaemon with variables added to the environment, and with the daemon.
func launch(t *testing.T, h *host, env []string, argv ...string) (d *daemon, stop func() error) {
	t.Helper()
	d = &daemon{cmd: exec.Command(argv[0], argv[1:]...), host: h, exited: make(chan struct{})}
	d.cmd.Env = append(os.Environ(), env...)
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	must(t, h.do(d.cmd.Start))
	go func() {
		d.err = d.cmd.Wait()
		close(d.exited)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			_ = d.end(unix.SIGQUIT) // the Go runtime prints all stacks
			t.Logf("%s wrote:\n%s", d, d.log.String())
		}
	})
	return d, func() error {
		if d.hasExited() {
			return fmt.Errorf("%s had ended by itself: %s", d, d.cmd.ProcessState)
		}
		return d.end(unix.SIGTERM)
	}
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

// end sends a signal, as an init system would, and kills the daemon when it does not obey.
func (d *daemon) end(sig syscall.Signal) error {
	if d.hasExited() {
		return d.err
	}
	if err := d.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("ending %s: %w", d, err)
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

// lockedBuffer is a bytes.Buffer that may be read while a process still writes to it.
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
