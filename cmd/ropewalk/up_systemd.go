// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/coreos/go-systemd/v22/journal"

	"github.com/ropewalk/ropewalk/pkg/control/quick"
)

// bringUp brings the interface up. If a service manager started this process, it then notifies the
// manager that the service is ready. The notification also names the daemon as the new main
// process.
func bringUp(ctx context.Context, r *quick.Runner, i quick.Interface) error {
	if err := useCredential(os.Getenv("CREDENTIALS_DIRECTORY"), i.File); err != nil {
		return err
	}
	warnOfSettings(r.Stderr, i)
	if !isService() {
		return r.Up(ctx, i)
	}
	var started *exec.Cmd
	start := r.Daemon
	r.Daemon = func(name string, flags []string) *exec.Cmd {
		started = start(name, flags)
		passServiceContext(started)
		return started
	}
	if err := r.Up(ctx, i); err != nil {
		return err
	}
	message := daemon.SdNotifyReady
	if started != nil && started.Process != nil {
		message = fmt.Sprintf("MAINPID=%d\n%s", started.Process.Pid, message)
	}
	if _, err := daemon.SdNotify(false, message); err != nil {
		return fmt.Errorf("notifying the service manager that %s is ready: %w", i.Name, err)
	}
	return nil
}

// isService reports whether a service manager started this process and expects notifications from it. A hook of the service that
// runs ropewalk for another interface has the same environment, except that SYSTEMD_EXEC_PID is not its process ID.
func isService() bool {
	started := os.Getenv("SYSTEMD_EXEC_PID") // systemd.exec(5)
	return os.Getenv("NOTIFY_SOCKET") != "" && (started == "" || isExecPID(started))
}

// isExecPID reports whether pid, a SYSTEMD_EXEC_PID, is this process's.
func isExecPID(pid string) bool { return pid == strconv.Itoa(os.Getpid()) }

// passServiceContext passes what the service manager gave this process to the daemon: the watchdog and the journal.
func passServiceContext(cmd *exec.Cmd) {
	cmd.Env = slices.DeleteFunc(cmd.Environ(), func(v string) bool { return strings.HasPrefix(v, "WATCHDOG_PID=") })
	cmd.Env = append(cmd.Env, startedByUp+"=1")
	if ok, err := journal.StderrIsJournalStream(); ok && err == nil { // an error means that JOURNAL_STREAM is malformed
		cmd.Env = append(cmd.Env, logFromUp+"=1")
		cmd.ExtraFiles = []*os.File{os.Stderr} // logFromUpFD
	}
}

// notifyReload runs f as a reload of the service: it notifies the service manager, if there is one, before and after f.
func notifyReload(f func() error) error {
	if !isService() {
		return f()
	}
	_, err := daemon.SdNotify(false, daemon.SdNotifyReloading+"\n"+daemon.SdNotifyMonotonicUsec())
	if err != nil {
		return fmt.Errorf("notifying the service manager of a reload: %w", err)
	}
	err = f()
	_, notifyErr := daemon.SdNotify(false, daemon.SdNotifyReady) // also after a failure: the tunnel still runs
	return errors.Join(err, notifyErr)
}
