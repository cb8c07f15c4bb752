// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// never is the expiry of a timer that is only cancelled, in seconds since 1970: the year 2242.
const never = 1 << 33

// watchClock calls jumped, from its own goroutine, when the machine resumes from suspend, until ctx ends. Go's timers do not advance
// during suspend. Setting the clock has the same effect (TFD_TIMER_CANCEL_ON_SET). The goroutine sleeps in between.
func watchClock(ctx context.Context, jumped func()) error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("creating a timerfd: %w", err)
	}
	timer := os.NewFile(uintptr(fd), "timerfd")
	if err := armTimer(timer); err != nil {
		return errors.Join(err, timer.Close())
	}
	context.AfterFunc(ctx, func() { _ = timer.Close() }) // wakes Read
	go func() {
		var ticks [8]byte
		for {
			_, err := timer.Read(ticks[:])
			if err != nil && !errors.Is(err, unix.ECANCELED) {
				return
			}
			if armTimer(timer) != nil {
				return
			}
			jumped()
		}
	}()
	return nil
}

// armTimer sets a timer that the kernel cancels when the clock jumps.
func armTimer(timer *os.File) error {
	raw, err := timer.SyscallConn()
	if err != nil {
		return fmt.Errorf("setting a timerfd: %w", err)
	}
	const flags = unix.TFD_TIMER_ABSTIME | unix.TFD_TIMER_CANCEL_ON_SET
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.TimerfdSettime(int(fd), flags, &unix.ItimerSpec{Value: unix.Timespec{Sec: never}}, nil)
	})
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("setting a timerfd: %w", err)
	}
	return nil
}
