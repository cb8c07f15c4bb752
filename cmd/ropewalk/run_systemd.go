// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
)

// notifyReady notifies the service manager, if there is one (sd_notify(3)), that the interface is served. Until ctx ends it
// also notifies the manager's watchdog. The function that it returns notifies the manager that the daemon stops.
func notifyReady(ctx context.Context, log *slog.Logger, name string) (notifyStopping func()) {
	if !notifiesService() {
		return func() {}
	}
	if os.Getenv(startedByUp) == "" {
		sdNotify(log, daemon.SdNotifyReady)
	}
	timeout, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("reading the service manager's watchdog timeout failed, sending no watchdog notifications: the service manager may restart this service", "error", err)
	}
	if timeout > 0 {
		w := watchdog{
			period: timeout / 3, log: log,
			check:  (&healthCheck{socket: uapi.DefaultDir, name: name, threads: threadNames}).check,
			notify: func() { sdNotify(log, daemon.SdNotifyWatchdog) },
		}
		go w.run(ctx)
	}
	return func() { sdNotify(log, daemon.SdNotifyStopping) }
}

// notifiesService reports whether this daemon is the main process of a service: the service manager started it, or the service's
// `ropewalk up` did. A daemon that a hook of the service started for another interface is not.
func notifiesService() bool { return os.Getenv(startedByUp) != "" || isService() }

// sdNotify sends a message to the service manager. Without a service manager it does nothing.
func sdNotify(log *slog.Logger, message string) {
	if _, err := daemon.SdNotify(false, message); err != nil {
		log.Warn("notifying the service manager failed, the service manager may stop or restart this service", "notification", message, "error", err)
	}
}

// watchdog notifies the service manager's watchdog periodically while a check passes.
type watchdog struct {
	period time.Duration
	check  func() error // may block: meanwhile there is no notification
	notify func()
	log    *slog.Logger
}

func (w *watchdog) run(ctx context.Context) {
	ticker := time.NewTicker(w.period)
	defer ticker.Stop()
	for {
		err := w.check()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			w.log.Error("health check failed, the service manager restarts this daemon unless a later check passes before the watchdog timeout", "error", err)
		default:
			w.notify()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// startedByUp is an environment variable that `ropewalk up` sets for the daemon it starts in a service. up itself notifies the
// service manager that the interface is ready, after it has configured addresses and routes.
const startedByUp = "ROPEWALK_STARTED_BY_UP"

// keepSocket is an environment variable that `ropewalk up` sets for the daemon it starts. Routes, rules and DNS belong to up's interface, so it
// must not end because a control socket was removed. `ropewalk run --daemon` sets it in a unit.
const keepSocket = "ROPEWALK_KEEP_SOCKET"

// keepsSocket reports whether the daemon that this process is, or starts in the background, must not end by a removed control socket: `ropewalk up`
// or a unit is responsible for it. Of a unit whose Type is not notify, systemd gives only the process ID.
func keepsSocket() bool {
	return os.Getenv(keepSocket) != "" || os.Getenv(kept) != "" || notifiesService() || isExecPID(os.Getenv("SYSTEMD_EXEC_PID"))
}

// logFromUp is an environment variable that `ropewalk up` sets if it passes the journal as file descriptor 3.
const (
	logFromUp   = "ROPEWALK_LOG_FROM_UP"
	logFromUpFD = 3
)

// inheritLog redirects standard error, including stack traces, to the journal of the unit. `ropewalk up` had set it to a log file.
func inheritLog() error {
	if os.Getenv(logFromUp) == "" {
		return nil
	}
	if err := unix.Dup3(logFromUpFD, unix.Stderr, 0); err != nil {
		return fmt.Errorf("redirecting standard error to the journal: %w", err)
	}
	return unix.Close(logFromUpFD)
}
