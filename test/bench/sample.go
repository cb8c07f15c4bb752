// SPDX-License-Identifier: Apache-2.0

package main

import "time"

// sample is what one test of one implementation in one round gave.
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
	Seconds  float64           `json:"seconds"` // of traffic per test
	Tests    []string          `json:"tests"`
	Samples  []sample          `json:"samples"`
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
