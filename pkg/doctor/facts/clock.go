// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

func (s source) clock(now time.Time) Clock {
	return Clock{
		Now:          now,
		Synchronised: answer(synchronised()),
		Source:       answer(s.text("sys/devices/system/clocksource/clocksource0/current_clocksource")),
	}
}

// synchronised asks the kernel whether some daemon keeps the time right (adjtimex(2)), which anybody may.
func synchronised() (bool, error) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return false, fmt.Errorf("asking for the state of the clock: %w", err)
	}
	return state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0, nil
}
