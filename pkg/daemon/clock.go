// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// never is when a timer is due that is to be cancelled only, in seconds since 1970: the year 2242.
const never = 1 << 33

// watchClock calls jumped, from a goroutine of its own, when the machine wakes up from a suspension, until ctx ends: Go's
// timers do not move meanwhile, and there may be none for a long time. That the clock was set looks the same
// (TFD_TIMER_CANCEL_ON_SET). Between those it costs nothing.
func watchClock(ctx context.Context, jumped func()) error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("creating a timer: %w", err)
	}
	timer := os.NewFile(uintptr(fd), "timerfd")
	if err := awaitJump(timer); err != nil {
		return errors.Join(err, timer.Close())
	}
	context.AfterFunc(ctx, func() { _ = timer.Close() }) // which wakes Read
	go func() {
		var ticks [8]byte
		for {
			_, err := timer.Read(ticks[:])
			if err != nil && !errors.Is(err, unix.ECANCELED) {
				return
			}
			if awaitJump(timer) != nil {
				return
			}
			jumped()
		}
	}()
	return nil
}

func awaitJump(timer *os.File) error {
	raw, err := timer.SyscallConn()
	if err != nil {
		return fmt.Errorf("setting a timer: %w", err)
	}
	const flags = unix.TFD_TIMER_ABSTIME | unix.TFD_TIMER_CANCEL_ON_SET
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.TimerfdSettime(int(fd), flags, &unix.ItimerSpec{Value: unix.Timespec{Sec: never}}, nil)
	})
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("setting a timer: %w", err)
	}
	return nil
}
