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

	"github.com/ropewalk/ropewalk/pkg/uapi"
)

// announce tells the service manager, if there is one (sd_notify(3)), that the interface is served, and feeds its watchdog
// until ctx ends. What it returns tells it that the daemon stops.
func announce(ctx context.Context, log *slog.Logger, name string) (stopping func()) {
	if !speaksForService() {
		return func() {}
	}
	if os.Getenv(startedByUp) == "" {
		tell(log, daemon.SdNotifyReady)
	}
	timeout, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("the service manager's watchdog is not fed", "error", err)
	}
	if timeout > 0 {
		w := watchdog{
			period: timeout / 3, log: log,
			check: (&pulse{socket: uapi.DefaultDir, name: name, threads: threadNames}).check,
			feed:  func() { tell(log, daemon.SdNotifyWatchdog) },
		}
		go w.run(ctx)
	}
	return func() { tell(log, daemon.SdNotifyStopping) }
}

// speaksForService reports whether the service manager wants to hear from this daemon: it is the service, or that service's
// `ropewalk up` has started it. One that a hook of a service has started, for another interface, is neither.
func speaksForService() bool { return os.Getenv(startedByUp) != "" || isService() }

// tell sends a message to the service manager. Without one it does nothing.
func tell(log *slog.Logger, message string) {
	if _, err := daemon.SdNotify(false, message); err != nil {
		log.Warn("the service manager is not told how the service is", "error", err)
	}
}

// watchdog feeds the service manager's watchdog while a check passes.
type watchdog struct {
	period time.Duration
	check  func() error // may take as long as it likes: meanwhile nothing is fed
	feed   func()
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
			w.log.Error("the service manager's watchdog is not fed: the device does not answer", "error", err)
		default:
			w.feed()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// startedByUp is set in the environment of a daemon whose `ropewalk up` tells the service manager when the interface is
// ready, which is when it has addresses and routes.
const startedByUp = "ROPEWALK_STARTED_BY_UP"

// logFromUp is set when descriptor 3 is where messages go.
const (
	logFromUp   = "ROPEWALK_LOG_FROM_UP"
	logFromUpFD = 3
)

// inheritLog makes what the daemon writes, traces of a crash included, go to the journal of its unit instead of the file that
// `ropewalk up` gave it.
func inheritLog() error {
	if os.Getenv(logFromUp) == "" {
		return nil
	}
	if err := unix.Dup3(logFromUpFD, unix.Stderr, 0); err != nil {
		return fmt.Errorf("taking the journal over: %w", err)
	}
	return unix.Close(logFromUpFD)
}
