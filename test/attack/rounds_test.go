// SPDX-License-Identifier: Apache-2.0

package attack

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
)

// caseOfRound is one of the cases that each round compares.
type caseOfRound int

const (
	noAttack   caseOfRound = iota
	noListener             // the attack's packets to a port without a listener
	attacked
	cases
)

// port returns the port to which packets go, 0 for none.
func (c caseOfRound) port() uint16 { return [cases]uint16{0, closedPort, testbed.ListenPort}[c] }

// order returns the cases of a round. Each is as often the first, the second and the last, in any three rounds.
func order(round int) []caseOfRound {
	all := []caseOfRound{noAttack, noListener, attacked}
	first := round % len(all)
	return append(all[first:], all[:first]...)
}

// The figures of a case in a round.
const (
	packetRate = iota // packets per second of the attack
	gbps              // of TCP through the tunnel
	cpu               // of the attacked daemon, in percent of a core
	switches          // of the attacked daemon, per second
	figureCount
)

type figures [figureCount]float64

// results are the figures of all rounds.
type results [cases][figureCount][]float64

func (r *results) add(c caseOfRound, f figures) {
	for i, v := range f {
		r[c][i] = append(r[c][i], v)
	}
}

// means returns the means of a figure, one for each case.
func (r *results) means(figure int, format string) string {
	var list []string
	for c := range cases {
		list = append(list, fmt.Sprintf(format, mean(r[c][figure])))
	}
	return strings.Join(list, " / ")
}

func mean(v []float64) (m float64) {
	for _, x := range v {
		m += x / float64(len(v))
	}
	return m
}

// share is a part of something, with its standard error.
type share struct{ value, stdErr float64 }

func (s share) String() string { return fmt.Sprintf("%.1f ± %.1f %%", 100*s.value, 100*s.stdErr) }

// cost returns the part of what is left without the attack that is lost with it, from pairs of values that were measured in the same
// round. So a difference between rounds is no error. It is one minus a ratio of means (Cochran, Sampling Techniques, chapter 6): the mean of
// the rounds' ratios would be biased.
func cost(without, with []float64) share {
	ratio, squares := mean(with)/mean(without), 0.0
	for i := range with {
		d := with[i] - ratio*without[i]
		squares += d * d
	}
	n := float64(len(with))
	return share{1 - ratio, math.Sqrt(squares/(n-1)/n) / mean(without)}
}

func TestCostComparesWithinRounds(t *testing.T) {
	for _, c := range []struct {
		name          string
		without, with []float64
		want          share
	}{
		{"nothing lost", []float64{2, 2, 2}, []float64{2, 2, 2}, share{0, 0}},
		{"a tenth lost, with noise", []float64{10, 10, 10}, []float64{8, 9, 10}, share{0.1, 0.1 / math.Sqrt(3)}},
		{"a fifth lost in rounds that differ", []float64{10, 20, 30}, []float64{8, 16, 24}, share{0.2, 0}},
		{"a large round weighs more", []float64{10, 30}, []float64{0, 30}, share{0.25, 0.375}},
		{"something gained", []float64{10, 10}, []float64{11, 13}, share{-0.2, 0.1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := cost(c.without, c.with)
			if math.Abs(got.value-c.want.value) > 1e-9 || math.Abs(got.stdErr-c.want.stdErr) > 1e-9 {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestStandardErrorFallsWithRounds(t *testing.T) {
	without, with := []float64{10, 10}, []float64{8, 10}
	few := cost(without, with)
	many := cost(slices.Repeat(without, 50), slices.Repeat(with, 50))
	if want := few.stdErr / math.Sqrt(99); math.Abs(many.stdErr-want) > 1e-9 {
		t.Errorf("got ± %v of 100 rounds, want %v", many.stdErr, want)
	}
}

func TestEachCaseHasEachPlaceInThreeRounds(t *testing.T) {
	for start := range 5 {
		var seen [cases][cases]int
		for round := start; round < start+int(cases); round++ {
			for place, c := range order(round) {
				seen[place][c]++
			}
		}
		for _, counts := range seen {
			if counts != [cases]int{1, 1, 1} {
				t.Errorf("rounds from %d: %v", start, seen)
			}
		}
	}
}

func TestMeansListAllCases(t *testing.T) {
	var r results
	for c := range cases {
		r.add(c, figures{gbps: float64(c)})
		r.add(c, figures{gbps: float64(c) + 1})
	}
	if got, want := r.means(gbps, "%.1f"), "0.5 / 1.5 / 2.5"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
