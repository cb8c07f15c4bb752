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

// event is a line that comes at a second since the machine was switched on.
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

// every returns line at each step of 10 seconds, up to the last one.
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
		want   string // "" for a machine that may get on
	}{
		{"just switched on", nil, 170, ""},
		{"never said a word", nil, 180, "no sign of life for 3m0s"},
		{"fell silent in a test", []event{{20, aTestBegins}}, 200, "no sign of life"},
		{"fell silent with a complaint", []event{{20, aTestBegins}, {90, rcuStall}}, 200, "self-detected stall"},
		{"only the kernel talks", append(every("[  9.000000] noise", 30, 200), event{20, aTestBegins}), 200, "no sign of life"},
		{"a test that takes long", append(every(alive, 10, 990), event{20, aTestBegins}), 995, ""},
		{"two processors stuck", []event{{20, aTestBegins}, {40, lockup(0, 22)}, {41, lockup(1, 26)}, {96, lockup(0, 74)}, {97, lockup(1, 79)}}, 97, "all 2 processors are stuck"},
		{"not yet for long", []event{{20, aTestBegins}, {40, lockup(0, 22)}, {41, lockup(1, 26)}, {68, lockup(0, 48)}, {69, lockup(1, 52)}}, 69, ""},
		{"one processor stuck, programs run", append(every(alive, 10, 200), event{96, lockup(0, 74)}, event{97, lockup(0, 79)}), 205, ""},
		{"one after the other, with life between", []event{{96, lockup(0, 74)}, {100, alive}, {180, lockup(1, 74)}}, 181, ""},
		{"one after the other, with a test between", []event{{96, lockup(0, 74)}, {100, aTestEnds}, {180, lockup(1, 74)}}, 181, ""},
		{"slow, but tests go on", append(every(aTestEnds, 10, 400), event{209, lockup(1, 22)}, event{300, rcuStall}), 405, ""},
		{"one processor stuck, no test gets on", append(every(alive, 10, 330), event{20, aTestBegins}, event{209, lockup(1, 22)}), 320, "no test got on for 5m0s"},
		{"stalled long ago, then a test got on", append(every(alive, 10, 900), event{209, lockup(1, 22)}, event{250, aTestEnds}), 900, ""},
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
				t.Errorf("stalled: %q, want %q", why, tc.want)
			}
		})
	}
}

func TestStalledMachineIsPoweredOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, switchOff := context.WithCancelCause(t.Context())
		guard(ctx, newWatch(processors, time.Now()), switchOff)
		if cause := context.Cause(ctx); !errors.Is(cause, errStalled) || !strings.Contains(cause.Error(), "no sign of life") {
			t.Errorf("switched off because of %v", cause)
		}
	})
}

func TestGuardReturnsWhenMachineEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, switchOff := context.WithCancelCause(t.Context())
		switchOff(nil)
		guard(ctx, newWatch(processors, time.Now()), switchOff)
		if cause := context.Cause(ctx); errors.Is(cause, errStalled) {
			t.Errorf("switched off because of %v", cause)
		}
	})
}
