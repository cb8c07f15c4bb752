// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"time"
)

// eraseLine goes back to the line's beginning and removes what stands there.
const eraseLine = "\r\x1b[K"

// clock says how long the rest takes, from how long each test took so far.
type clock struct {
	guess func(test string) time.Duration // of a test that has not been run yet
	left  map[string]int
	spent map[string]time.Duration
	count map[string]int
}

func newClock(turns []turn, tests []string, guess func(string) time.Duration) *clock {
	c := &clock{guess: guess, left: map[string]int{}, spent: map[string]time.Duration{}, count: map[string]int{}}
	for _, t := range turns {
		for _, s := range t.steps(tests) {
			c.left[s.test]++
		}
	}
	return c
}

// took notes the end of a step. A turn's setting up counts towards the step that follows it.
func (c *clock) took(test string, d time.Duration) {
	c.left[test]--
	c.spent[test] += d
	c.count[test]++
}

// remaining is the expected duration of all steps that have not ended.
func (c *clock) remaining() time.Duration {
	var sum time.Duration
	for test, n := range c.left {
		each := c.guess(test)
		if c.count[test] > 0 {
			each = c.spent[test] / time.Duration(c.count[test])
		}
		sum += each * time.Duration(n)
	}
	return sum
}

// progress prints the current test: in one rewritten line on a terminal, elsewhere in a line per turn.
type progress struct {
	out      io.Writer
	terminal bool
	rounds   int
	clock    *clock
	last     time.Time
	turn     step // its round and versus only
}

func (p *progress) before(s step) {
	line := fmt.Sprintf("round %d of %d: %s of %s, %s left", s.round, p.rounds, s.test, s.implementation,
		roughly(p.clock.remaining()))
	switch here := (step{round: s.round, versus: s.versus}); {
	case p.terminal:
		fmt.Fprint(p.out, eraseLine+line)
	case here != p.turn:
		fmt.Fprintln(p.out, line)
		p.turn = here
	}
}

func (p *progress) after(s step) {
	now := time.Now()
	p.clock.took(s.test, now.Sub(p.last))
	p.last = now
	p.clear()
}

func (p *progress) clear() {
	if p.terminal {
		fmt.Fprint(p.out, eraseLine)
	}
}

// roughly rounds to the precision of such an estimate.
func roughly(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%d s", int(d.Round(time.Second).Seconds()))
	}
	if d < time.Hour {
		return fmt.Sprintf("%d min", int(d.Round(time.Minute).Minutes()))
	}
	return fmt.Sprintf("%.1f h", d.Hours())
}
