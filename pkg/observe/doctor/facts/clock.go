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
		Synchronised: result(synchronised()),
		Source:       result(s.text("sys/devices/system/clocksource/clocksource0/current_clocksource")),
	}
}

// synchronised reports whether NTP or PTP disciplines the clock (adjtimex(2), no privilege needed).
func synchronised() (bool, error) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return false, fmt.Errorf("reading the clock state: %w", err)
	}
	return state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0, nil
}
