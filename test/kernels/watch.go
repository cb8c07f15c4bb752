// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/test/kernels/plan"
)

// Time limits without progress. An emulated machine on a busy host is slow. A test that takes a
// second on the host has taken two minutes, and some tests wait two minutes for a timer. Soft
// lockups of 22 s have resolved themselves.
const (
	stuckLimit   = time.Minute     // all processors stuck, by the machine's clock
	silenceLimit = 3 * time.Minute // no heartbeat either: the machine is dead
	quietLimit   = 5 * time.Minute // heartbeats and stall messages, but no test that started or ended
)

// watch detects from the console that a machine stalls. Init's heartbeat distinguishes a stalled machine from a hanging test, which
// the timeout of the test binary ends. watch is safe for concurrent use.
type watch struct {
	processors int

	mu           sync.Mutex
	lastProgress time.Time             // when a test or step last started, wrote a result or ended
	lastSign     time.Time             // time of the last progress or heartbeat
	stuck        map[int]time.Duration // soft lockup durations by processor, since lastSign
	stall        string                // the last stall message since lastProgress
}

// newWatch returns a watch for a machine that is powered on now.
func newWatch(processors int, now time.Time) *watch {
	return &watch{processors: processors, lastProgress: now, lastSign: now, stuck: map[int]time.Duration{}}
}

// Line parses a line of the console that arrived at now.
func (w *watch) Line(now time.Time, line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch c := parseKernelMessage(line); {
	case isProgress(line):
		w.lastProgress, w.lastSign, w.stall = now, now, ""
		clear(w.stuck)
	case strings.Contains(line, plan.AliveMarker):
		w.lastSign = now
		clear(w.stuck)
	case c.fault == faultStall:
		w.stall = c.text
		if c.processor >= 0 {
			w.stuck[c.processor] = c.stuck
		}
	}
}

// Stalled returns the reason why the machine is considered stalled, or "".
func (w *watch) Stalled(now time.Time) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.allStuck():
		return fmt.Sprintf("all %d processors are stuck: %s", w.processors, w.stall)
	case now.Sub(w.lastSign) >= silenceLimit:
		return fmt.Sprintf("no heartbeat for %s%s", silenceLimit, stallSuffix(w.stall))
	case w.stall != "" && now.Sub(w.lastProgress) >= quietLimit:
		return fmt.Sprintf("no test made progress for %s: %s", quietLimit, w.stall)
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

func stallSuffix(stall string) string {
	if stall == "" {
		return ""
	}
	return ": " + stall
}

// isProgress reports whether the line shows the start or the end of a test or step.
func isProgress(line string) bool {
	return isTestLine(line) || strings.HasPrefix(line, plan.StepMarker) || strings.HasPrefix(line, plan.StepEndMarker)
}
