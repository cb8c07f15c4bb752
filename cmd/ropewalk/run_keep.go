// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/control/quick"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/memory"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
)

// kept is an environment variable that --keep sets for its daemon.
const kept = "ROPEWALK_KEPT"

// Exit codes of a kept daemon for its parent.
const (
	exitHandedOver = 6 // another process has taken the tunnel over
	exitRefused    = 7 // the daemon that serves the interface does not hand it over
)

// keptExit adds an exit code for the parent to an error of a kept daemon.
func keptExit(code int, err error) error {
	if os.Getenv(kept) == "" {
		return err
	}
	return codedError{code, err}
}

const (
	// turnPoll is the time between checks whether another process still serves the interface, or holds the lock.
	turnPoll = 50 * time.Millisecond
	// servedPoll is that time while a process does.
	servedPoll = 500 * time.Millisecond
	// minDaemonLife is how long a daemon must run for the next one to start without a delay. It is also the longest delay.
	minDaemonLife = time.Minute
	// minRestartDelay is the delay after the second crash, and after the first refused takeover. It doubles with each further one.
	minRestartDelay = time.Second
)

// supervisorState is the state that `ropewalk ready` reports.
type supervisorState int32

const (
	supervisorStarting supervisorState = iota // a daemon starts, or crashed and is about to
	supervisorServing                         // the daemon serves the interface
	supervisorWaiting                         // another daemon serves the interface and keeps it or has taken it over, or there is no configuration yet
)

// supervisor is the parent process of --keep. It has neither keys nor a tunnel: its child is the
// daemon. Two supervisors of one interface hand the tunnel over, as in a rolling update. The later
// one takes over, and the earlier one waits, for its own end or the end of the other.
type supervisor struct {
	name     string
	config   string   // the file of --config; empty: none
	args     []string // of the daemon
	log      *slog.Logger
	signals  chan os.Signal // to pass on
	state    atomic.Int32   // supervisorState
	warnLock sync.Once
	unlock   func()        // of the lock that the supervisor holds whose daemon has the tunnel; nil: not held
	delay    time.Duration // to the next daemon after a crash
	persist  bool          // --persist
	carrier  io.Closer     // of tun.HoldCarrier; nil: not held
}

// keep serves an interface in a child process until ctx ends, or the child ends otherwise than by a crash.
func (o *runOptions) keep(ctx context.Context, cmd *cobra.Command, name string) error {
	switch err := tun.CheckName(name); {
	case o.inBackground || o.takeover:
		return usageError{errors.New("--keep excludes --daemon, and takes over by itself, without --takeover")}
	case err != nil:
		return usageError{err}
	case os.Getenv(tunFD)+os.Getenv(controlFD) != "":
		return usageError{fmt.Errorf("--keep excludes %s and %s", tunFD, controlFD)}
	case strings.Contains(name, "%"):
		return usageError{errors.New("--keep needs the name of the interface, without %d")}
	}
	args, err := foregroundArgs(cmd.Flags(), name)
	if err != nil {
		return err
	}
	log, _, err := o.log.open(os.Stderr)
	if err != nil {
		return usageError{err}
	}
	s := &supervisor{name: name, config: o.config, args: args, log: log.With("interface", name), signals: make(chan os.Signal, 1), persist: o.persist}
	signal.Notify(s.signals, syscall.SIGQUIT) // it would end this process, and with it the daemon
	defer signal.Stop(s.signals)
	if err := s.serveReady(ctx, o.keepSocket); err != nil {
		return err
	}
	if !o.persist {
		s.log.Warn("--keep without --persist: the interface and its routes vanish with a daemon that crashes, and packets leave by other routes")
	}
	return s.run(ctx)
}

// run starts daemons until one ends in order. After the end of ctx the error is the last daemon's,
// unless its error was about a takeover.
func (s *supervisor) run(ctx context.Context) error {
	defer s.release()
	served, retry := false, time.Duration(0) // retry: the delay after a refused takeover
	for ctx.Err() == nil {
		flags := s.awaitTurn(ctx)
		if ctx.Err() != nil {
			break
		}
		began := time.Now()
		end, ready, err := s.runDaemon(ctx, flags)
		if ready {
			served, retry = true, 0
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil && !served:
			return err
		case err != nil: // perhaps the host lacks memory: as after a crash
			s.log.Warn("starting the daemon failed", "error", err)
		}
		code := end.ExitCode()
		switch crashed := code < 0 || ready && code == exitUsage; { // the exit code of a panic
		case ctx.Err() != nil && (code == exitHandedOver || code == exitRefused):
		case ctx.Err() != nil:
			return childError{end}
		case code == exitHandedOver:
			s.log.Info("another process has taken the tunnel over, waiting until this process is stopped or nobody serves the interface")
			s.standBy(ctx)
		case code == exitRefused:
			if retry == 0 {
				s.log.Warn("the running daemon does not hand the interface over, retrying until it ends")
			}
			retry = longerDelay(retry)
			s.setState(supervisorWaiting)
			s.awaitEnd(ctx, retry)
		case code == exitUnreachable && len(flags) > 0: // it has ended meanwhile
		case code == 0 && !s.isConfigured(): // the program that wrote the configuration has removed the tunnel
		case crashed:
			s.pauseAfterCrash(ctx, end, time.Since(began))
		default:
			return childError{end}
		}
	}
	return nil
}

// childError is the end of a daemon that is not started again. It has no text: the daemon has reported its error, and the kernel its signal.
type childError struct{ state *os.ProcessState }

func (childError) Error() string { return "" }

// ExitCode returns the daemon's exit code, or 128 and the signal that has ended it, as a shell does.
func (e childError) ExitCode() int {
	if ws, ok := e.state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return e.state.ExitCode()
}

func (s *supervisor) setState(now supervisorState) { s.state.Store(int32(now)) }

// isServed reports whether a process serves the interface.
func (s *supervisor) isServed() bool {
	c, err := uapi.Dial(s.name)
	if err != nil {
		return !uapi.IsNotRunning(err)
	}
	_ = c.Close()
	return true
}

// awaitTurn waits until a process serves the interface, and returns the flag to take over from it.
// It also returns when this supervisor has the lock, no process serves, and there is a
// configuration.
func (s *supervisor) awaitTurn(ctx context.Context) (flags []string) {
	for logged := false; ctx.Err() == nil; {
		held := s.lock() // first: its last holder may have started a daemon
		if s.isServed() {
			flags = []string{takeoverFlag}
			break
		}
		configured := s.isConfigured()
		if held && configured {
			break
		}
		if !configured && !logged {
			s.log.Info("configuration file does not exist, waiting until another program has written it", "file", s.config)
			s.setState(supervisorWaiting)
			logged = true
		}
		sleep(ctx, turnPoll)
	}
	s.setState(supervisorStarting)
	return flags
}

// isConfigured reports whether a daemon has a configuration to start with, if it is to have one. A program that removes the file and the interface
// ends the tunnel so.
func (s *supervisor) isConfigured() bool {
	if s.config == "" {
		return true
	}
	_, err := os.Stat(s.config)
	return !errors.Is(err, fs.ErrNotExist)
}

// standBy waits until nobody serves the interface, and no other supervisor is about to. It tries the lock first, which costs the daemon of that
// supervisor nothing. It polls, since a blocking flock(2) could not be ended.
func (s *supervisor) standBy(ctx context.Context) {
	s.setState(supervisorWaiting)
	for s.release(); ctx.Err() == nil; s.release() {
		if s.lock() && !s.isServed() {
			return
		}
		sleep(ctx, servedPoll)
	}
}

// awaitEnd waits until nobody serves the interface, at most for a time.
func (s *supervisor) awaitEnd(ctx context.Context, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for ctx.Err() == nil && s.isServed() {
		sleep(ctx, servedPoll)
	}
}

// pauseAfterCrash delays the next daemon if the last one also followed a crash. A supervisor that waits, perhaps of another version, may open
// the interface meanwhile.
func (s *supervisor) pauseAfterCrash(ctx context.Context, end *os.ProcessState, ran time.Duration) {
	if ran >= minDaemonLife {
		s.delay = 0
	}
	s.log.Warn("the daemon crashed or was killed, starting another one: packets are dropped until then", "status", end.String(), "ran", ran.String(), "after", s.delay.String())
	s.setState(supervisorStarting)
	if s.delay > 0 {
		s.release()
		sleep(ctx, s.delay)
	}
	s.delay = longerDelay(s.delay)
}

func longerDelay(d time.Duration) time.Duration { return min(max(2*d, minRestartDelay), minDaemonLife) }

// holdCarrier keeps the carrier of the interface while no daemon serves it. It is called for each daemon: the interface may be another one of that name.
func (s *supervisor) holdCarrier() {
	if !s.persist {
		return
	}
	held, err := tun.HoldCarrier(s.name)
	if err != nil {
		s.log.Warn("the interface will have no carrier while no daemon serves it: with the sysctl ignore_routes_with_linkdown packets then leave by other routes", "error", err)
		return
	}
	if s.carrier != nil {
		_ = s.carrier.Close()
	}
	s.carrier = held
}

// lock reports whether this supervisor has the lock, and takes it if it is free. It does not wait.
func (s *supervisor) lock() bool {
	if s.unlock != nil {
		return true
	}
	unlock, err := quick.Lock(quick.DefaultRunDir, s.name+".keep")
	if errors.Is(err, quick.ErrLocked) {
		return false
	}
	if err != nil {
		s.warnLock.Do(func() {
			s.log.Warn("locking the interface failed: a second ropewalk run --keep for it would not be noticed, and both may open it at once", "error", err)
		})
		unlock = func() {}
	}
	s.unlock = unlock
	return true
}

func (s *supervisor) release() {
	if s.unlock != nil {
		s.unlock()
		s.unlock = nil
	}
}

// runDaemon runs a daemon to its end, and passes signals on. When ctx ends, it sends SIGTERM. ready: the daemon has served the interface.
func (s *supervisor) runDaemon(ctx context.Context, flags []string) (end *os.ProcessState, ready bool, err error) {
	pipe, theirs, err := os.Pipe()
	if err != nil {
		return nil, false, fmt.Errorf("creating a pipe for the daemon: %w", err)
	}
	defer pipe.Close()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", slices.Insert(slices.Clone(s.args), 1, flags...)...)
	cmd.Args[0] = "ropewalk"
	cmd.Env = append(os.Environ(), kept+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	passFile(cmd, readyFD, theirs)
	// A terminal's signals reach this process only. The daemon must not outlive this thread, the main one: nobody would pass signals on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM) // fails if the daemon has ended
		return os.ErrProcessDone                // the result is the daemon's own
	}
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		return nil, false, fmt.Errorf("starting the daemon of %s: %w", s.name, err)
	}
	served, ended := make(chan bool, 1), make(chan struct{})
	go func() {
		text, _ := io.ReadAll(io.LimitReader(pipe, unix.IFNAMSIZ))
		served <- len(text) > 0
	}()
	go func() {
		defer close(ended)
		_ = cmd.Wait() // ProcessState has the result
	}()
	var relock <-chan time.Time // after a takeover, until the other supervisor has released the lock
	for {
		select {
		case ready = <-served:
			if ready {
				s.holdCarrier()
				s.setState(supervisorServing)
				memory.GiveBack() // what started this process and the daemon is not used for long
				relock = time.After(0)
			}
		case <-relock:
			if relock = nil; !s.lock() {
				relock = time.After(turnPoll)
			}
		case sig := <-s.signals:
			_ = cmd.Process.Signal(sig) // fails if the daemon has ended
		case <-ended:
			return cmd.ProcessState, ready, nil
		}
	}
}

// sleep returns after d, or when ctx ends.
func sleep(ctx context.Context, d time.Duration) { _ = pause(ctx, d) }
