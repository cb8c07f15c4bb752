// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/test/golden"
)

func TestChartMatchesGoldenFile(t *testing.T) {
	c := &chart{
		title: "Crypto per core", unit: "GB/s", command: "sudo ropewalk bench --only crypto --plots .",
		note:   "Sealing and opening trains of 45 × 1440 B and of 64 B packets: one core alone, and all cores at once.",
		labels: []string{"seal 45 × 1440 B", "open 45 × 1440 B", "seal 64 B", "not measured"},
		sets:   []barSet{{"one core", []float64{2.213, 2.4, 0.31, math.NaN()}}, {"all cores, each", []float64{1.9, 2.1, 0.27, 0}}},
	}
	golden.Check(t, "testdata/chart.svg", c.svg())
}

func TestChartWithoutFiguresIsEmpty(t *testing.T) {
	c := &chart{labels: []string{"a", "b"}, sets: []barSet{{"", []float64{0, math.Inf(1)}}}}
	if !c.empty() {
		t.Error("a chart without a bar is to be drawn")
	}
	if c.sets[0].values[0] = 1; c.empty() {
		t.Error("a chart with a bar is not drawn")
	}
}

func TestRoundStepIsOneTwoOrFive(t *testing.T) {
	for v, want := range map[float64]float64{1: 1, 1.1: 2, 2.3: 5, 0.0031: 0.005, 51: 100, 0.6: 1} {
		if got := roundStep(v); math.Abs(got-want) > 1e-9*want {
			t.Errorf("roundStep(%v) = %v, want %v", v, got, want)
		}
	}
}

// checkSVG reads the picture as XML: only the elements that are drawn, and no coordinate that is not a number.
func checkSVG(t *testing.T, svg []byte) {
	t.Helper()
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		e, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		if !strings.Contains(" svg title text line rect ", " "+e.Name.Local+" ") {
			t.Errorf("an element %s", e.Name.Local)
		}
		for _, a := range e.Attr {
			if strings.HasPrefix(a.Name.Local, "on") || strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") ||
				strings.Contains(a.Value, "%!") {
				t.Errorf("%s has %s=%q", e.Name.Local, a.Name.Local, a.Value)
			}
		}
	}
}

func FuzzChartIsWellFormed(f *testing.F) {
	f.Add("title", "note", 1.0, -2.5)
	f.Add("<script>&\"'\x00\xff", "]]> <!-- </svg> \x1b[0m", math.Inf(1), 5e-324)
	f.Add("", "", math.MaxFloat64, 1e99)
	f.Fuzz(func(t *testing.T, title, note string, a, b float64) {
		c := &chart{
			title: title, note: note, unit: title, command: note,
			labels: []string{title, note}, sets: []barSet{{note, []float64{a, b}}, {title, []float64{b, a}}},
		}
		if !c.empty() {
			checkSVG(t, c.svg())
		}
	})
}
