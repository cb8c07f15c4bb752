// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stopGrace is the time between SIGTERM and SIGKILL for a Command whose context is done.
const stopGrace = 3 * time.Second

// Command is an exec.Cmd that runs in a host's namespace. It has its own process group, so that Ctrl-C in the terminal
// interrupts only the process that owns the lab. When its context is done it gets SIGTERM, and SIGKILL after stopGrace.
type Command struct {
	*exec.Cmd
	host *Host
}

// Command prepares a process inside the host. argv must not be empty.
func (h *Host) Command(ctx context.Context, argv ...string) *Command {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = stopGrace
	return &Command{Cmd: cmd, host: h}
}

// Start starts the process in the host's namespace. See exec.Cmd.Start.
func (c *Command) Start() error { return c.host.Do(c.Cmd.Start) }

// Run starts the process and waits for it. See exec.Cmd.Run.
func (c *Command) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the process and returns what it wrote to standard output. See exec.Cmd.Output.
func (c *Command) Output() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout = &out
	err := c.Run()
	return out.Bytes(), err
}

// CombinedOutput runs the process and returns what it wrote. See exec.Cmd.CombinedOutput.
func (c *Command) CombinedOutput() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}

// killProcesses kills the processes in a lab's namespace at path, and waits until they have ended.
// A running process would keep the namespace and its devices after its name is removed.
func killProcesses(path string) error {
	var ns unix.Stat_t
	if err := unix.Stat(path, &ns); err != nil {
		return fmt.Errorf("reading namespace %s: %w", path, err)
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && pid != os.Getpid() {
			errs = append(errs, killInside(pid, ns.Dev, ns.Ino))
		}
	}
	return errors.Join(errs...)
}

// killInside kills pid if it is in the namespace. It opens the pidfd first, so that it cannot kill another process to which
// the kernel gave the same pid meanwhile.
func killInside(pid int, dev, ino uint64) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil //nolint:nilerr // the process has ended
	}
	defer unix.Close(fd)
	var ns unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &ns) != nil || ns.Dev != dev || ns.Ino != ino {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("killing process %d: %w", pid, err)
	}
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(stopGrace.Milliseconds()))
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("waiting for process %d: %w", pid, err)
	}
	return nil
}
