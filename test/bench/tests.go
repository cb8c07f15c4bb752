// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/bench"
)

// valueFigure is the name of a test's main figure among a sample's Figures; the others have bench.Sample's names.
const valueFigure = "value"

// row is one line of the table: one figure of one test.
type row struct {
	test, figure, unit string
	// less says that less is better, so that a ratio below 1 is ropewalk's.
	less bool
	// bare is for figures that may well be zero, of which a ratio says nothing.
	bare bool
}

// companions are the figures beside a test's main one that have a line of their own, below it.
func companions() []row {
	return []row{
		{test: "tcp4", figure: "cores_per_gbps", unit: "cores per Gbit/s", less: true},
		{test: "udpgso", figure: "loss_percent", unit: "% lost", less: true, bare: true},
		{test: "udp1400", figure: "loss_percent", unit: "% lost", less: true, bare: true},
		{test: "rtt_load", figure: "p99_ms", unit: "ms, 99 of 100 below", less: true},
	}
}

// rows are the table's lines for the measures.
func rows(measures []bench.Measure) []row {
	var list []row
	for _, m := range measures {
		// An idle daemon may well not wake up at all.
		list = append(list, row{test: m.Name, figure: valueFigure, unit: m.Unit, less: m.Lower, bare: m.Name == "wakeups"})
		for _, c := range companions() {
			if c.test == m.Name {
				list = append(list, c)
			}
		}
	}
	return list
}

// chooseMeasures picks by name and keeps the order, which matters: rss is a peak over what came before.
func chooseMeasures(all []bench.Measure, names []string) ([]bench.Measure, error) {
	if len(names) == 0 {
		return all, nil
	}
	var valid []string
	var chosen []bench.Measure
	for _, m := range all {
		valid = append(valid, m.Name)
		if slices.Contains(names, m.Name) {
			chosen = append(chosen, m)
		}
	}
	return chosen, onlyValid("test", names, valid)
}

func measureNames(measures []bench.Measure) []string {
	var names []string
	for _, m := range measures {
		names = append(names, m.Name)
	}
	return names
}

// guessDuration is how long a test takes before any has been timed; ndrN takes several stretches of at most 2 s.
func guessDuration(test string, stretch time.Duration) time.Duration {
	if strings.HasPrefix(test, "ndr") {
		return 12 * min(stretch, 2*time.Second)
	}
	return stretch + time.Second
}
