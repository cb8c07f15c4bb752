// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// startDaemon starts the process that creates and serves the interface, and waits until it serves.
type startDaemon struct {
	link  string
	flags []string // of `ropewalk run`
}

func (s startDaemon) String() string {
	return strings.Join(slices.Concat([]string{"ropewalk run"}, s.flags, []string{s.link}), " ")
}

func (s startDaemon) undo() Step { return stopDaemon{s.link} }

func (s startDaemon) run(ctx context.Context, j *job) error {
	log, err := CreateLog(j.RunDir, j.Name)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := j.Daemon(s.link, s.flags)
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the daemon of %s: %w", s.link, err)
	}
	d := &daemon{cmd: cmd, exited: make(chan struct{})}
	go d.wait()
	err = j.saveState(state{PID: cmd.Process.Pid, Path: j.Path})
	if err == nil {
		err = d.waitUntilServing(ctx, j)
	}
	if err != nil {
		d.kill(j.timeout())
		return errors.Join(fmt.Errorf("starting the daemon of %s: %w%s", s.link, err, LogTail(log)), j.removeState())
	}
	return nil
}

// CreateLog creates or truncates the log file of an interface's daemon in the directory runDir, readable by its owner only. The caller
// closes it. It stays after a failed Up, as it may have the reason.
func CreateLog(runDir, name string) (*os.File, error) {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return nil, fmt.Errorf("creating the directory for daemon logs: %w", err)
	}
	path := filepath.Join(runDir, name+".log")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		err = f.Chmod(0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("creating the log of %s: %w", name, err)
	}
	return f, nil
}

// daemon is a child process.
type daemon struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended
}

func (d *daemon) wait() {
	_ = d.cmd.Wait() // ProcessState has the exit status
	close(d.exited)
}

// pollInterval is the interval of checks whether a daemon is ready.
const pollInterval = 10 * time.Millisecond

// waitUntilServing waits until the daemon answers on its socket and the interface exists.
func (d *daemon) waitUntilServing(ctx context.Context, j *job) error {
	ctx, cancel := context.WithTimeoutCause(ctx, j.timeout(), errors.New("it does not answer on its socket"))
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for !j.answers() {
		select {
		case <-d.exited:
			return fmt.Errorf("it exited: %s", d.cmd.ProcessState)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
	link, err := hostnet.FindLink(j.Name)
	if err != nil {
		return err
	}
	return j.updateState(func(st *state) { st.Link = link.Index })
}

// answers reports whether a daemon answers on the interface's socket.
func (j *job) answers() bool {
	c, err := j.Sockets.Dial(j.Name)
	if err != nil {
		return false
	}
	defer c.Close()
	_, err = c.Status()
	return err == nil
}

// kill ends the process with SIGTERM, so that it removes its socket, and after grace with SIGKILL.
func (d *daemon) kill(grace time.Duration) {
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // fails only after its exit
	select {
	case <-d.exited:
	case <-time.After(grace):
		_ = d.cmd.Process.Kill()
		<-d.exited
	}
}

// Limits for the part of the log that goes into an error.
const (
	tailBytes = 4096
	tailLines = 10
)

// LogTail returns the last lines of a log file, after a line break. It is empty if there are none.
func LogTail(log *os.File) string {
	info, err := log.Stat()
	if err != nil {
		return ""
	}
	offset := max(info.Size()-tailBytes, 0)
	b, err := io.ReadAll(io.NewSectionReader(log, offset, tailBytes))
	text := strings.TrimSpace(string(b))
	if err != nil || text == "" {
		return ""
	}
	lines := strings.Split(text, "\n")
	return "\n" + strings.Join(lines[max(len(lines)-tailLines, 0):], "\n")
}
