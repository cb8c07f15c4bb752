// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"
)

// sample is the result of one test of one implementation in one round.
type sample struct {
	Round int `json:"round"` // from 1
	// Versus is the peer in whose turn it was measured: that peer itself, or ropewalk right before it. It is "raw" for
	// the cable without a tunnel.
	Versus         string             `json:"versus"`
	Implementation string             `json:"implementation"`
	Test           string             `json:"test"`
	Figures        map[string]float64 `json:"figures,omitempty"`
	Error          string             `json:"error,omitempty"`
}

// report is everything that one run found out.
type report struct {
	Date     time.Time         `json:"date"`
	Machine  machine           `json:"machine"`
	Command  string            `json:"command"`
	Versions map[string]string `json:"versions"` // of ropewalk and of each peer
	Rounds   int               `json:"rounds"`
	Whole    int               `json:"whole"`   // rounds of which all has been measured
	Seconds  float64           `json:"seconds"` // of traffic per test
	Queues   int               `json:"queues"`  // of the cable
	Tests    []string          `json:"tests"`
	Samples  []sample          `json:"samples"`
}

// resume takes over the samples of the report in a file, so that a run can be made in parts.
// Samples of a round that was cut off are left out: it is taken once more. Without a file there
// are none; one of another comparison is an error.
func (r *report) resume(path string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the earlier rounds: %w", err)
	}
	var old report
	if err := json.Unmarshal(text, &old); err != nil {
		return fmt.Errorf("parsing the earlier rounds in %s: %w", path, err)
	}
	if !r.compares(&old) {
		return fmt.Errorf("adding to %s: it has other tests, programs, seconds or queues, or is another machine's", path)
	}
	r.Whole, r.Rounds = old.Whole, r.Rounds+old.Whole
	r.Samples = slices.DeleteFunc(old.Samples, func(s sample) bool { return s.Round > old.Whole })
	return nil
}

// compares tells whether another run's figures are of the same things as this one's.
func (r *report) compares(o *report) bool {
	return slices.Equal(o.Tests, r.Tests) && maps.Equal(o.Versions, r.Versions) &&
		o.Seconds == r.Seconds && o.Queues == r.Queues && o.Machine == r.Machine
}

// values are an implementation's figures over all rounds, in order.
func (r *report) values(implementation string, w row) []float64 {
	var list []float64
	for _, s := range r.Samples {
		if v, ok := s.Figures[w.figure]; ok && s.Implementation == implementation && s.Test == w.test {
			list = append(list, v)
		}
	}
	return list
}

// pairs are the figures of ropewalk and of a peer round by round, as far as both gave one.
func (r *report) pairs(peer string, w row) []pair {
	mine := make(map[int]float64)
	for _, s := range r.Samples {
		if v, ok := s.Figures[w.figure]; ok && s.Versus == peer && s.Implementation == ropewalkName && s.Test == w.test {
			mine[s.Round] = v
		}
	}
	var list []pair
	for _, s := range r.Samples {
		v, ok := s.Figures[w.figure]
		if !ok || s.Implementation != peer || s.Test != w.test {
			continue
		}
		if m, both := mine[s.Round]; both {
			list = append(list, pair{ropewalk: m, peer: v})
		}
	}
	return list
}
