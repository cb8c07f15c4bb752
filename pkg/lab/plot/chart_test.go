// SPDX-License-Identifier: Apache-2.0

package plot

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

// examples are one chart of each kind, with what charts have to cope with.
func examples() map[string][]byte {
	nan := math.NaN()
	return map[string][]byte{
		"bars": Bars(
			Chart{
				Title:   "Crypto per core",
				Note:    "Sealing and opening trains of 45 × 1440 B and of 64 B packets: one core alone, and all cores at once.",
				Command: "sudo ropewalk bench --only crypto --plots .",
			},
			Axis{Label: "GB/s"},
			[]string{"seal 45 × 1440 B", "open 45 × 1440 B", "seal 64 B", "a label that is so long that it has to be wrapped somewhere"},
			BarSet{"one core", []float64{2.213, 2.4, 0.31, nan}}, BarSet{"all cores, each", []float64{1.9, 2.1, 0.27}},
		),
		"one-bar":   Bars(Chart{Title: "One"}, Axis{Label: "kpps"}, []string{"only"}, BarSet{Values: []float64{123456}}),
		"no-bars":   Bars(Chart{Title: "None"}, Axis{Label: "kpps"}, nil),
		"below":     Bars(Chart{Title: "Below zero"}, Axis{Label: "%"}, []string{"up", "down"}, BarSet{Values: []float64{30, -12}}),
		"few-lines": Line(Chart{Title: "Streams"}, Axis{Label: "streams"}, Axis{Label: "Gbit/s"}, Series{Points: []Point{{1, 3.4}, {4, 3.6}, {16, 3.41}}}),
		"no-lines":  Line(Chart{Title: "None"}, Axis{Label: "x", Log: true}, Axis{Label: "y"}, Series{Name: "empty"}),
		"lines": Line(
			Chart{
				Title:   "Throughput by cores",
				Note:    "A model with the stage costs measured on two cores. Dashed: without spreading.",
				Command: "ropewalk scale --cores 64",
			},
			Axis{Label: "cores", Log: true}, Axis{Label: "Gbit/s"},
			Series{Name: "16 flows", Points: []Point{{1, 2.1}, {2, 4}, {4, 7.7}, {8, 14.6}, {16, 26}, {32, 26}, {64, 26}}},
			Series{Name: "256 flows", Points: []Point{{1, 2.1}, {2, 4}, {4, 7.9}, {8, 15.5}, {16, 30}, {32, 57}, {64, 104}}},
			Series{Name: "1 flow", Points: []Point{{0, 5}, {1, 2.1}, {2, 3.3}, {4, nan}, {8, 3.4}, {64, 3.4}}},
			Series{Name: "no spread", Dashed: true, Points: []Point{{1, 2.1}, {2, 4}, {4, 7.2}, {8, 8}, {64, 8}}},
		),
		"hostile": Bars(
			Chart{Title: "<script>&\"'\x00\xff", Note: "]]> <!-- ", Command: "a --b='</svg>'"},
			Axis{Label: "<&>"}, []string{"\x1b[0m<b>"}, BarSet{"\" onload=\"", []float64{1}}, BarSet{"huge", []float64{math.MaxFloat64}},
		),
	}
}

func TestChartsMatchGoldenFiles(t *testing.T) {
	for name, got := range examples() {
		golden.Check(t, "testdata/"+name+".svg", got)
	}
}

func TestChartsAreWellFormed(t *testing.T) {
	for name, svg := range examples() {
		checkSVG(t, name, svg)
	}
}

// checkSVG reads the picture as XML: nothing but the elements that are drawn, and no coordinate that is not a number.
func checkSVG(t *testing.T, name string, svg []byte) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		e, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		if !strings.Contains(" svg title text line rect circle polygon polyline ", " "+e.Name.Local+" ") {
			t.Errorf("%s has an element %s", name, e.Name.Local)
		}
		for _, a := range e.Attr {
			if strings.HasPrefix(a.Name.Local, "on") || strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") ||
				strings.Contains(a.Value, "%!") {
				t.Errorf("%s: %s has %s=%q", name, e.Name.Local, a.Name.Local, a.Value)
			}
		}
	}
}

func FuzzChartsAreWellFormed(f *testing.F) {
	f.Add("title", "note", 1.0, -2.5, true)
	f.Add("<&>\x00", "a b\tc\n", math.Inf(1), 5e-324, false)
	f.Add("", "", math.MaxFloat64, -math.MaxFloat64, false)
	f.Add("x", "y", 1e99, 1e-99, true)
	f.Fuzz(func(t *testing.T, title, note string, a, b float64, log bool) {
		c := Chart{Title: title, Note: note, Command: note}
		axis := Axis{Label: title, Log: log}
		checkSVG(t, "line", Line(c, axis, axis, Series{Name: note, Points: []Point{{a, b}, {b, a}, {1, 1}}}))
		checkSVG(t, "bars", Bars(c, axis, []string{title, note}, BarSet{note, []float64{a, b}}))
	})
}
