// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"os"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
)

func clockChecks() []Check {
	return []Check{
		check("clock", "system clock and NTP synchronisation", evaluateClock,
			"a handshake initiation carries a timestamp; a peer rejects an initiation that is not later than the last (replay protection)"),
		check("clock-source", "kernel clocksource", evaluateClockSource,
			"the clock is read once per batch: a clocksource other than a CPU register (tsc) costs about 1 µs per read"),
	}
}

func evaluateClock(f *facts.Facts, r *recorder) {
	c := f.Clock
	released := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	switch {
	case c.Now.Before(released):
		r.fail("", "wrong: "+c.Now.UTC().Format(time.RFC3339), "timedatectl set-ntp true")
	case c.Synchronised.Err != nil:
		r.unknown("", c.Synchronised.Err)
	case !c.Synchronised.Value:
		r.warn("", "not synchronised (NTP)", "timedatectl set-ntp true")
	default:
		r.ok("", "synchronised")
	}
}

func evaluateClockSource(f *facts.Facts, r *recorder) {
	s := f.Clock.Source
	slow := []string{"hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies"}
	switch {
	case errors.Is(s.Err, os.ErrNotExist):
		r.ok("", "the kernel offers no clocksource to choose")
	case s.Err != nil:
		r.unknown("", s.Err)
	case slices.Contains(slow, s.Value):
		r.warn("", s.Value, "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource   # if the kernel offers it")
	default:
		r.ok("", "%s", s.Value)
	}
}
