// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/test/kernels/plan"
)

// event is a line on the console at a number of seconds after power-on.
type event struct {
	at   int
	line string
}

const (
	aTestBegins = "\x16=== RUN   TestA"
	aTestEnds   = "    \x16--- PASS: TestA/one (0.05s)"
	rcuStall    = "[  215.382126] rcu: INFO: rcu_preempt self-detected stall on CPU"
	alive       = plan.AliveMarker + " 10s"
)

func lockup(processor, seconds int) string {
	return fmt.Sprintf("[  300.000000] watchdog: BUG: soft lockup - CPU#%d stuck for %ds! [udp:239]", processor, seconds)
}

// every returns line every 10 seconds from first to last.
func every(line string, first, last int) []event {
	var out []event
	for at := first; at <= last; at += 10 {
		out = append(out, event{at, line})
	}
	return out
}

func TestWatchReportsOnlyStalledMachines(t *testing.T) {
	for _, tc := range []struct {
		name   string
		events []event
		at     int
		want   string // "" if the machine is not stalled
	}{
		{"just powered on", nil, 170, ""},
		{"no output at all", nil, 180, "no heartbeat for 3m0s"},
		{"silence during a test", []event{{20, aTestBegins}}, 200, "no heartbeat"},
		{"silence after a stall message", []event{{20, aTestBegins}, {90, rcuStall}}, 200, "self-detected stall"},
		{"only kernel messages", append(every("[  9.000000] noise", 30, 200), event{20, aTestBegins}), 200, "no heartbeat"},
		{"a long test", append(every(alive, 10, 990), event{20, aTestBegins}), 995, ""},
		{"two processors stuck", []event{{20, aTestBegins}, {40, lockup(0, 22)}, {41, lockup(1, 26)}, {96, lockup(0, 74)}, {97, lockup(1, 79)}}, 97, "all 2 processors are stuck"},
		{"two processors stuck for a short time", []event{{20, aTestBegins}, {40, lockup(0, 22)}, {41, lockup(1, 26)}, {68, lockup(0, 48)}, {69, lockup(1, 52)}}, 69, ""},
		{"one processor stuck, programs still run", append(every(alive, 10, 200), event{96, lockup(0, 74)}, event{97, lockup(0, 79)}), 205, ""},
		{"one processor after the other, with a heartbeat between", []event{{96, lockup(0, 74)}, {100, alive}, {180, lockup(1, 74)}}, 181, ""},
		{"one processor after the other, with a test between", []event{{96, lockup(0, 74)}, {100, aTestEnds}, {180, lockup(1, 74)}}, 181, ""},
		{"slow, but tests make progress", append(every(aTestEnds, 10, 400), event{209, lockup(1, 22)}, event{300, rcuStall}), 405, ""},
		{"one processor stuck, no test makes progress", append(every(alive, 10, 330), event{20, aTestBegins}, event{209, lockup(1, 22)}), 320, "no test made progress for 5m0s"},
		{"stalled long ago, then a test made progress", append(every(alive, 10, 900), event{209, lockup(1, 22)}, event{250, aTestEnds}), 900, ""},
		{"a new step", append(every(alive, 10, 900), event{209, rcuStall}, event{250, plan.StepMarker + " udp"}), 900, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			start := time.Unix(0, 0)
			w := newWatch(2, start)
			for at := 0; at <= tc.at; at++ {
				for _, e := range tc.events {
					if e.at == at {
						w.Line(start.Add(time.Duration(at)*time.Second), e.line)
					}
				}
				if why := w.Stalled(start.Add(time.Duration(at) * time.Second)); why != "" && (tc.want == "" || at < tc.at) {
					t.Fatalf("stalled after %d s: %s", at, why)
				}
			}
			why := w.Stalled(start.Add(time.Duration(tc.at) * time.Second))
			if !strings.Contains(why, tc.want) || (why == "") != (tc.want == "") {
				t.Errorf("stalled: got %q, want %q", why, tc.want)
			}
		})
	}
}

func TestStalledMachineIsPoweredOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, switchOff := context.WithCancelCause(t.Context())
		guard(ctx, newWatch(processors, time.Now()), switchOff)
		if cause := context.Cause(ctx); !errors.Is(cause, errStalled) || !strings.Contains(cause.Error(), "no heartbeat") {
			t.Errorf("powered off because of %v", cause)
		}
	})
}

func TestGuardReturnsWhenMachineEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, switchOff := context.WithCancelCause(t.Context())
		switchOff(nil)
		guard(ctx, newWatch(processors, time.Now()), switchOff)
		if cause := context.Cause(ctx); errors.Is(cause, errStalled) {
			t.Errorf("powered off because of %v", cause)
		}
	})
}
