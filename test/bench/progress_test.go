// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestRemainingTimeUsesEachTestsDuration(t *testing.T) {
	guess := func(test string) time.Duration {
		return map[string]time.Duration{"tcp": 4, "ndr": 20}[test] * time.Second
	}
	c := newClock(turns(2, []string{"x"}, false), []string{"tcp", "ndr"}, guess)
	expect := func(want time.Duration) {
		t.Helper()
		if got := c.remaining(); got != want {
			t.Errorf("%s left, want %s", got, want)
		}
	}
	expect(4*4*time.Second + 4*20*time.Second)
	c.took("tcp", 6*time.Second)
	expect(3*6*time.Second + 4*20*time.Second)
	c.took("tcp", 8*time.Second)
	expect(2*7*time.Second + 4*20*time.Second)
	for range 4 {
		c.took("ndr", 30*time.Second)
	}
	expect(2 * 7 * time.Second)
}

func TestProgressRewritesItsLineOnlyOnTerminals(t *testing.T) {
	plan, tests := turns(2, []string{"x"}, false), []string{"tcp", "rtt"}
	for _, tt := range []struct {
		terminal bool
		lines    int
	}{{true, 0}, {false, 2}} {
		var out bytes.Buffer
		p := &progress{
			out: &out, terminal: tt.terminal, rounds: 2, last: time.Now(),
			clock: newClock(plan, tests, func(string) time.Duration { return time.Second }),
		}
		for _, turn := range plan {
			for _, s := range turn.steps(tests) {
				p.before(s)
				p.after(s)
			}
		}
		if got := strings.Count(out.String(), "\n"); got != tt.lines {
			t.Errorf("terminal %t: %d lines:\n%q", tt.terminal, got, &out)
		}
		if !strings.Contains(out.String(), "round 1 of 2: tcp of ropewalk, 8 s left") {
			t.Errorf("terminal %t: %q", tt.terminal, &out)
		}
		if tt.terminal && !strings.HasSuffix(out.String(), eraseLine) {
			t.Errorf("the line stays: %q", &out)
		}
	}
}

func TestDurationsAreRounded(t *testing.T) {
	for d, want := range map[time.Duration]string{
		400 * time.Millisecond: "0 s", 59 * time.Second: "59 s", 150 * time.Second: "3 min", 100 * time.Minute: "1.7 h",
	} {
		if got := roughly(d); got != want {
			t.Errorf("%s: got %s, want %s", d, got, want)
		}
	}
}
