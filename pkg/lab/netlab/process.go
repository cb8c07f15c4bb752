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

// stopGrace is how long a Command whose context is done has to follow SIGTERM.
const stopGrace = 3 * time.Second

// Command is an exec.Cmd that starts inside a host. It is its own process group, so that a Ctrl-C at the terminal
// reaches the owner of the lab and not its parts. When its context is done it gets SIGTERM, and SIGKILL three seconds
// later.
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

// killProcesses kills the processes in the namespace at path, which belongs to a lab and so do they, and waits until
// they are gone: their devices would otherwise outlive the namespace's name.
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

// killInside kills pid if it is in the namespace. The pidfd comes first, so that the process examined is the one
// killed even if the number is used again.
func killInside(pid int, dev, ino uint64) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil //nolint:nilerr // gone already
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
