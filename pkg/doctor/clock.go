// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"os"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/doctor/facts"
)

func clockChecks() []Check {
	return []Check{
		check("clock", "the wall clock, and whether it is synchronised", judgeClock,
			"a handshake carries the time, and peers refuse one that is earlier than the last (replay protection)"),
		check("clock-source", "what the kernel reads the time from", judgeClockSource,
			"the clock is read once per batch: sources that are no processor register cost a microsecond each time"),
	}
}

func judgeClock(f *facts.Facts, r *recorder) {
	c := f.Clock
	released := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	switch {
	case c.Now.Before(released):
		r.fail("", "it is wrong: "+c.Now.UTC().Format(time.RFC3339), "timedatectl set-ntp true")
	case c.Synchronised.Err != nil:
		r.unknown("", c.Synchronised.Err)
	case !c.Synchronised.Value:
		r.warn("", "nobody synchronises it", "timedatectl set-ntp true")
	default:
		r.ok("", "synchronised")
	}
}

func judgeClockSource(f *facts.Facts, r *recorder) {
	s := f.Clock.Source
	slow := []string{"hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies"}
	switch {
	case errors.Is(s.Err, os.ErrNotExist):
		r.ok("", "the kernel has no choice of them")
	case s.Err != nil:
		r.unknown("", s.Err)
	case slices.Contains(slow, s.Value):
		r.warn("", s.Value, "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource   # if the kernel offers it")
	default:
		r.ok("", "%s", s.Value)
	}
}
