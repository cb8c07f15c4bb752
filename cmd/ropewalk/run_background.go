// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/control/quick"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/tunnel/daemon"
)

// readyFD is an environment variable with a file descriptor. It is the pipe to which a daemon in
// the background writes the interface's name once it serves it.
const readyFD = "ROPEWALK_READY_FD"

// Environment variables with file descriptors, as wireguard-go has them. They are a queue of an
// interface that another program has created, and a listening socket for the control socket.
const (
	tunFD     = "WG_TUN_FD"
	controlFD = "WG_UAPI_FD"
)

// backgroundTimeout is the time within which a daemon must serve its interface.
const backgroundTimeout = 30 * time.Second

// backgroundAnswer is the time within which it must then answer on its control socket. A loaded machine takes some seconds.
const backgroundAnswer = 30 * time.Second

// backgroundKillDelay is the time between SIGTERM and SIGKILL for a daemon that does not get ready.
const backgroundKillDelay = 5 * time.Second

// startInBackground starts this program again as the daemon of an interface, in a session of its own, and returns when it serves the
// interface. If the daemon exits instead, the error has its exit code and the end of its log.
func (o *runOptions) startInBackground(cmd *cobra.Command, name string) error {
	if o.takeover {
		return usageError{errors.New("--takeover needs no --daemon: `ropewalk upgrade` replaces a running daemon")}
	}
	options, err := o.daemon(name, nil, nil)
	if err != nil {
		return usageError{err}
	}
	if err := options.Check(); err != nil { // before its name becomes a file's
		return usageError{err}
	}
	if mode, spray := o.settings.Spread, o.settings.Spray; mode != nil && spray != nil {
		warnOfSpray(cmd, *mode, *spray)
	}
	args, err := foregroundArgs(cmd.Flags(), name)
	if err != nil {
		return err
	}
	file := logName(name)
	unlock, err := quick.Lock(quick.DefaultRunDir, file)
	if err != nil {
		return withHint(err)
	}
	defer unlock()
	if options.ControlFD == 0 { // else the socket is there before the daemon
		if client, err := socketDir().Dial(name); err == nil {
			_ = client.Close()
			return fmt.Errorf("starting the daemon of %s: the interface is served already", name)
		}
	}
	log, err := quick.CreateLog(quick.DefaultRunDir, file)
	if err != nil {
		return withHint(err)
	}
	defer log.Close()
	created, err := startAndAwait(cmd.Context(), args, log, options)
	if err != nil && file != name { // nothing has that name later, and the error has its end
		_ = os.Remove(log.Name())
	}
	if err == nil && created != name {
		_, err = fmt.Fprintln(cmd.OutOrStdout(), created)
		err = errors.Join(err, os.Rename(log.Name(), filepath.Join(quick.DefaultRunDir, created+".log")))
	}
	return err
}

// logName returns the name under which an interface's log begins. With a pattern such as wg%d the interface has none yet.
func logName(name string) string {
	if strings.Contains(name, "%") {
		return fmt.Sprintf("%s.%d", name, os.Getpid())
	}
	return name
}

// startAndAwait starts the daemon with these arguments, waits until it serves the interface, and returns the interface's name.
func startAndAwait(ctx context.Context, args []string, log *os.File, o daemon.Options) (created string, err error) {
	ready, theirs, err := os.Pipe()
	if err != nil {
		return "", fmt.Errorf("creating a pipe for the daemon: %w", err)
	}
	defer ready.Close()
	// Files that this process has inherited, such as a script's flock(1), are not for a daemon. Kernels before 5.11 cannot do it.
	_ = unix.CloseRange(uint(unix.Stderr)+1, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	process := exec.Command("/proc/self/exe", args...)
	process.Args[0] = "ropewalk"
	process.Dir = "/" // so that it keeps no file system busy
	process.Stdout, process.Stderr = log, log
	process.Env = backgroundEnv()
	passFile(process, readyFD, theirs)
	passFD(process, tunFD, o.TUNFD)
	passFD(process, controlFD, o.ControlFD)
	process.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = process.Start()
	_ = theirs.Close()
	if err != nil {
		return "", fmt.Errorf("starting the daemon of %s: %w", o.Name, err)
	}
	check := func(name string) error { return answersSocket(socketDir(), name) }
	if o.ControlFD != 0 { // the socket of another program, perhaps elsewhere
		check = nil
	}
	return awaitReady(ctx, process, ready, log, o.Name, check)
}

// backgroundEnv returns the environment of a daemon in the background. Its process ID is not the
// process ID that a unit knows.
func backgroundEnv() []string {
	env := os.Environ()
	if keepsSocket() {
		env = append(env, keepSocket+"=1")
	}
	return env
}

// passFile passes an open file to a process, with its descriptor in an environment variable.
func passFile(cmd *exec.Cmd, variable string, f *os.File) {
	cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", variable, unix.Stderr+len(cmd.ExtraFiles)))
}

// passFD is passFile for a descriptor, which is closed with this process; 0 is none.
func passFD(cmd *exec.Cmd, variable string, fd int) {
	if fd != 0 {
		passFile(cmd, variable, os.NewFile(uintptr(fd), variable))
	}
}

// answersSocket asks the daemon of an interface over its control socket: it may have no descriptor left for clients. It returns at the daemon's end.
func answersSocket(dir uapi.Dir, name string) error {
	client, err := dir.Dial(name)
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := client.LogLevel(); err != nil { // which waits for no peer
		return fmt.Errorf("it does not answer: %w", err)
	}
	return nil
}

// awaitReady waits until the daemon serves the interface, and returns its name. check may be nil. Otherwise it ends the daemon.
func awaitReady(ctx context.Context, process *exec.Cmd, ready *os.File, log *os.File, name string, check func(name string) error) (created string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	within := func(limit time.Duration, failure string) *time.Timer {
		return time.AfterFunc(limit, func() { cancel(errors.New(failure)) })
	}
	limit := within(backgroundTimeout, "the interface is not ready")
	defer func() { limit.Stop() }()
	stop := context.AfterFunc(ctx, func() { // which closes the pipe
		_ = process.Process.Signal(syscall.SIGTERM) // so that it removes its socket
		time.AfterFunc(backgroundKillDelay, func() { _ = process.Process.Kill() })
	})
	announced, err := io.ReadAll(io.LimitReader(ready, unix.IFNAMSIZ))
	served := err == nil && len(announced) > 0
	if limit.Stop() && served && check != nil {
		limit = within(backgroundAnswer, "it does not answer")
		err = check(string(announced))
	}
	if stop() && served && err == nil {
		return string(announced), nil
	}
	unusable := served && err != nil
	if unusable && ctx.Err() == nil {
		_ = process.Process.Kill()
	}
	_ = process.Wait()
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case !unusable:
		err = fmt.Errorf("it ended: %s", process.ProcessState)
	}
	code := process.ProcessState.ExitCode()
	if code <= 0 {
		code = exitError
	}
	return "", codedError{code, fmt.Errorf("starting the daemon of %s: %w%s", name, err, quick.LogTail(log))}
}

// foregroundArgs returns the arguments of a daemon in the foreground with the same flags. It has another working directory.
func foregroundArgs(flags *pflag.FlagSet, name string) (args []string, err error) {
	args = []string{"run"}
	flags.Visit(func(f *pflag.Flag) {
		value := f.Value.String()
		switch f.Name {
		case "daemon", "keep", "keep-socket":
			return
		case "config", "metrics-config":
			var pathErr error
			value, pathErr = filepath.Abs(value)
			err = errors.Join(err, pathErr)
		}
		args = append(args, "--"+f.Name+"="+value)
	})
	return append(args, "--", name), err
}

// readyPipe is the pipe of readyFD.
type readyPipe struct{ file *os.File }

// inheritReadyPipe returns the pipe, or nil if nobody waits for this process.
func inheritReadyPipe() (*readyPipe, error) {
	fd, err := inheritFD(readyFD)
	if fd == 0 {
		return nil, err
	}
	return &readyPipe{os.NewFile(uintptr(fd), "ready")}, nil
}

// inheritFD returns the descriptor that an environment variable has, 0 for none, and removes the variable. This process's own children do
// not inherit the descriptor.
func inheritFD(variable string) (int, error) {
	value := os.Getenv(variable)
	if value == "" {
		return 0, nil
	}
	fd, err := strconv.ParseUint(value, 10, 16)
	if err != nil || int(fd) <= unix.Stderr {
		return 0, fmt.Errorf("%s=%.40q: want the number of an open file descriptor, from %d on", variable, value, unix.Stderr+1)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return 0, fmt.Errorf("%s=%d: this process has no open file descriptor of that number", variable, fd)
	}
	if err := os.Unsetenv(variable); err != nil {
		return 0, fmt.Errorf("removing %s from the environment: %w", variable, err)
	}
	return int(fd), nil
}

// announce writes the name of the interface, which is served now. On a nil readyPipe it does nothing.
func (p *readyPipe) announce(log *slog.Logger, name string) {
	if p == nil {
		return
	}
	_, err := io.WriteString(p.file, name)
	if err = errors.Join(err, p.file.Close()); err != nil {
		log.Warn("reporting that the interface is ready to `ropewalk run --daemon` failed: that command ends with an error, this daemon serves the interface", "interface", name, "error", err)
	}
}

// wireguardGo is the name of a link to this program that stands in for wireguard-go.
const wireguardGo = "wireguard-go"

// wireguardGoArgs returns the arguments of `ropewalk run` for a command line of wireguard-go, or
// args if it is none. That is `wireguard-go [-f] INTERFACE`, and also `ropewalk [-f] INTERFACE`,
// with which wg-quick(8) starts the program in WG_QUICK_USERSPACE_IMPLEMENTATION. Then any word
// but a command is an interface, while otherwise a word may be a mistyped command.
func wireguardGoArgs(program string, args []string, isCommand, isLikeCommand func(string) bool, getenv func(string) string) []string {
	named := filepath.Base(program) == wireguardGo
	foreground, rest := false, args
	if len(rest) > 0 && (rest[0] == "-f" || rest[0] == "--foreground") {
		foreground, rest = true, rest[1:]
	}
	switch {
	case len(rest) != 1 || strings.HasPrefix(rest[0], "-"):
		return args
	case !named && (strings.Contains(rest[0], "/") || strings.HasSuffix(rest[0], ".conf")): // a file, for `ropewalk up`
		return args
	case named:
	case isCommand(rest[0]):
		return args
	case getenv("WG_QUICK_USERSPACE_IMPLEMENTATION") != "":
	case isLikeCommand(rest[0]) || !looksLikeInterface(rest[0]):
		return args
	}
	if foreground || getenv("WG_PROCESS_FOREGROUND") == "1" {
		return []string{"run", "--", rest[0]}
	}
	return []string{"run", "--daemon", "--", rest[0]}
}

// looksLikeInterface reports whether a word that is no command is probably an interface's name,
// such as wg0. It is false for an address or the name of a host.
func looksLikeInterface(word string) bool {
	return interfaceWord.MatchString(word) && strings.ContainsAny(word, "0123456789")
}

var interfaceWord = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_-]*$`)

// explainUnknownCommand adds to cobra's error about an unknown command how to create an interface of that name.
func explainUnknownCommand(err error, args []string) error {
	if err == nil || len(args) != 1 || !strings.HasPrefix(err.Error(), "unknown command") || strings.Contains(err.Error(), "Did you mean") {
		return err
	}
	word := args[0]
	if _, parseErr := netip.ParseAddr(word); parseErr == nil {
		return fmt.Errorf("%w: this is an address, and an interface has a name such as wg0", err)
	}
	return fmt.Errorf("%w\nTo create an interface of that name: ropewalk run --daemon %s", err, word)
}
