// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/test/kernels/plan"
)

// How long a machine may show nothing. An emulated machine beside load is slow: a test that takes a second on a host was
// seen to take two minutes, and some wait for two minutes by themselves. Soft lockups of 22 s were seen to pass.
const (
	stuckLimit   = time.Minute     // all processors stuck, by the machine's clock
	silenceLimit = 3 * time.Minute // no heartbeat either: the machine is dead
	quietLimit   = 5 * time.Minute // heartbeats, complaints of a stall, and no test that began or ended
)

// watch decides from a console whether its machine stalls: its kernel, not a test of it. Init's heartbeat tells them
// apart: a test that hangs on a machine that lives is the test's own fault, and left to the timeout of its binary.
// Safe for concurrent use.
type watch struct {
	processors int

	mu       sync.Mutex
	progress time.Time             // when a test or a step last began, said something or ended
	life     time.Time             // when any program last wrote
	stuck    map[int]time.Duration // by processor, since life
	stall    string                // the last complaint since progress
}

// newWatch starts watching a machine that is switched on now.
func newWatch(processors int, now time.Time) *watch {
	return &watch{processors: processors, progress: now, life: now, stuck: map[int]time.Duration{}}
}

// Line takes a line of the console that came at now.
func (w *watch) Line(now time.Time, line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch c := readComplaint(line); {
	case isProgress(line):
		w.progress, w.life, w.stall = now, now, ""
		clear(w.stuck)
	case strings.Contains(line, plan.AliveMarker):
		w.life = now
		clear(w.stuck)
	case c.fault == faultStall:
		w.stall = c.text
		if c.processor >= 0 {
			w.stuck[c.processor] = c.stuck
		}
	}
}

// Stalled says what is wrong with the machine, and nothing as long as it may get on.
func (w *watch) Stalled(now time.Time) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.allStuck():
		return fmt.Sprintf("all %d processors are stuck: %s", w.processors, w.stall)
	case now.Sub(w.life) >= silenceLimit:
		return fmt.Sprintf("no sign of life for %s%s", silenceLimit, behind(w.stall))
	case w.stall != "" && now.Sub(w.progress) >= quietLimit:
		return fmt.Sprintf("no test got on for %s: %s", quietLimit, w.stall)
	}
	return ""
}

func (w *watch) allStuck() bool {
	n := 0
	for _, d := range w.stuck {
		if d >= stuckLimit {
			n++
		}
	}
	return n >= w.processors
}

func behind(stall string) string {
	if stall == "" {
		return ""
	}
	return ": " + stall
}

// isProgress tells lines about the course of tests and steps from what else is on the console.
func isProgress(line string) bool {
	return isTestLine(line) || strings.HasPrefix(line, plan.StepMarker) || strings.HasPrefix(line, plan.StepEndMarker)
}
