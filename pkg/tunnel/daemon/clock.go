// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// never is the expiry of a timer that is only cancelled, in seconds since 1970: the year 2242.
const never = 1 << 33

// watchClock calls jumped, from its own goroutine, when the machine resumes from suspend, until ctx ends. Go's timers do not advance
// during suspend. Setting the clock has the same effect (TFD_TIMER_CANCEL_ON_SET). The argument of jumped is true after a suspend. The goroutine
// sleeps in between.
func watchClock(ctx context.Context, jumped func(suspended bool)) error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("creating a timerfd: %w", err)
	}
	timer := os.NewFile(uintptr(fd), "timerfd")
	if err := armTimer(timer); err != nil {
		return errors.Join(err, timer.Close())
	}
	context.AfterFunc(ctx, func() { _ = timer.Close() }) // wakes Read
	meter := suspendMeter{read: readClock}
	meter.suspended()
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
			jumped(meter.suspended())
		}
	}()
	return nil
}

// suspendMeter finds suspends: CLOCK_BOOTTIME advances during them and CLOCK_MONOTONIC does not.
type suspendMeter struct {
	read      func(clock int32) int64
	maxOffset int64 // upper bound of the difference of the clocks at the last call, in ns
}

// suspended reports whether the machine was suspended since the last call. The first call reports whether it was ever suspended.
func (m *suspendMeter) suspended() bool {
	before := m.read(unix.CLOCK_MONOTONIC)
	boot := m.read(unix.CLOCK_BOOTTIME)
	after := m.read(unix.CLOCK_MONOTONIC) // the thread may have waited for the CPU between the readings
	grown := boot-after > m.maxOffset
	m.maxOffset = boot - before
	return grown
}

// readClock returns the time of a clock in ns. The kernel has both clocks since 2.6.39.
func readClock(clock int32) int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(clock, &ts)
	return ts.Nano()
}

// autosleepFile says whether the kernel suspends the machine whenever nothing keeps it awake. It exists with CONFIG_PM_AUTOSLEEP only.
const autosleepFile = "/sys/power/autosleep"

// suspendsOften reports whether the machine suspends whenever nothing keeps it awake, as phones do. Erasing keys each time would start
// handshakes all day. The in-kernel WireGuard does not erase them either, with CONFIG_PM_AUTOSLEEP.
func suspendsOften(file string) bool {
	state, err := os.ReadFile(file)
	return err == nil && strings.TrimSpace(string(state)) != "off"
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
