// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/bench/measure"
)

// BenchmarkPaths runs each measure of measure.Paths very briefly, so that none rots. Its figures say nothing: see docs/bench.md for
// how to take them.
func BenchmarkPaths(b *testing.B) {
	needLabs(b)
	ropewalk := needBinary(b, "ropewalk", "build")
	quic, err := filepath.Abs("../../bin/bench-quic")
	if err != nil {
		b.Fatal(err)
	}
	o := opener{
		queues: 2, stretch: 50 * time.Millisecond, traffic: []string{ropewalk, "traffic"}, measures: measure.Paths(),
		argv: map[string][]string{ropewalkName: {ropewalk, "run"}}, quic: quic,
	}
	tunnel, err := o.open(b.Context(), ropewalkName)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := tunnel.Close(); err != nil {
			b.Error(err)
		}
	}()
	for _, m := range measure.Paths() {
		b.Run(m.Name, func(b *testing.B) {
			if m.NeedsQUIC && !isExecutable(quic) {
				b.Skipf("no %s: make bin/bench-quic", quic)
			}
			for range b.N {
				figures, err := tunnel.measure(b.Context(), m.Name)
				if err != nil {
					b.Fatal(err)
				}
				hasEachFigure(b, m, figures)
			}
		})
	}
}

// hasEachFigure fails unless a measure gave what its lines of the table show, and more than nothing unless that may be zero.
func hasEachFigure(b *testing.B, m measure.Measure, figures map[string]float64) {
	b.Helper()
	for _, w := range rows([]measure.Measure{m}) {
		if v, ok := figures[w.figure]; !ok || (!w.bare && v <= 0) {
			b.Errorf("%s is %v of %v", w.figure, v, figures)
		}
	}
}
