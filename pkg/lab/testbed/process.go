// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
)

// stopTimeout is how long a process has to follow SIGTERM: long enough for a busy machine.
const stopTimeout = 30 * time.Second

// Daemon starts the implementation of one tunnel end in a host. It is a foreground process that
// creates the interface and serves its UAPI socket, /var/run/wireguard/IFNAME.sock. It need not
// wait until it is ready. The process must outlive ctx: the Lab stops it.
type Daemon func(ctx context.Context, h *netlab.Host, ifname string) (*Process, error)

// Command is the Daemon that runs argv with the interface's name as one more argument.
func Command(argv ...string) Daemon {
	return func(ctx context.Context, h *netlab.Host, ifname string) (*Process, error) {
		return StartProcess(ctx, h, append(slices.Clone(argv), ifname)...)
	}
}

// Process is a process in a host, with those it starts. Its methods may be called by any goroutine.
type Process struct {
	cmd      *netlab.Command
	log      tail
	stopping atomic.Bool
	done     chan struct{}
	err      error // of the exit; after done
}

// StartProcess starts argv in a host. It outlives ctx; the caller stops it.
func StartProcess(ctx context.Context, h *netlab.Host, argv ...string) (*Process, error) {
	if len(argv) == 0 {
		return nil, errors.New("starting a process: no command")
	}
	p := &Process{cmd: h.Command(context.WithoutCancel(ctx), argv...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", argv[0], err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// PIDs returns the process and the live members of its process group.
func (p *Process) PIDs() []int { return groupMembers(p.cmd.Process.Pid) }

// Usage is the CPU time and the context switches of the live threads of a process and of its group
// since they began.
type Usage struct {
	CPU      time.Duration // user and system, by the scheduler's clock
	Switches uint64        // context switches, voluntary and not
}

// Usage returns what the process has used so far.
func (p *Process) Usage() (Usage, error) {
	pids := p.PIDs()
	switches, err := contextSwitches(pids)
	return Usage{CPU: threadTimes(pids), Switches: switches}, err
}

// Argv is the command that was started.
func (p *Process) Argv() []string { return slices.Clone(p.cmd.Args) }

// Log is the end of the process's output, whole lines.
func (p *Process) Log() string { return p.log.String() }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns an error with the end of the log if the process exited unexpectedly; nil while it runs and after Stop.
func (p *Process) Err() error {
	select {
	case <-p.done:
	default:
		return nil
	}
	if p.stopping.Load() {
		return nil
	}
	return fmt.Errorf("%s exited unexpectedly (%s)%s", p.cmd.Path, p.cmd.ProcessState, p.LastWords())
}

// Stop sends SIGTERM, and SIGKILL to the process group after half a minute. It returns an error if the process failed.
// It may be called again.
func (p *Process) Stop() error {
	p.stopping.Store(true)
	group := p.cmd.Process.Pid
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		// The group's number is not given to another as long as it has members.
		_ = unix.Kill(-group, unix.SIGKILL)
	case <-time.After(stopTimeout):
		_ = unix.Kill(-group, unix.SIGKILL)
		<-p.done
		return fmt.Errorf("stopping %s: it did not end within %s of SIGTERM%s", p.cmd.Path, stopTimeout, p.LastWords())
	}
	if p.err != nil && !endedBy(p.err, syscall.SIGTERM) {
		return fmt.Errorf("stopping %s: %w%s", p.cmd.Path, p.err, p.LastWords())
	}
	return nil
}

// kill sends SIGKILL to the process and its group. Err and Stop do not report that exit as a failure.
func (p *Process) kill() {
	p.stopping.Store(true)
	_ = unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL)
	<-p.done
}

// endedBy reports whether a signal ended the process.
func endedBy(err error, signal syscall.Signal) bool {
	var exit interface{ Sys() any }
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == signal
}

// LastWords is the log, indented, to be put behind an error.
func (p *Process) LastWords() string {
	text := p.Log()
	if text == "" {
		return ""
	}
	return "; it last wrote:\n  " + strings.ReplaceAll(text, "\n", "\n  ")
}
