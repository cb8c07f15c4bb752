// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"gonum.org/v1/plot/plotter"

	"github.com/ropewalk/ropewalk/test/bench/result"
	"github.com/ropewalk/ropewalk/test/scale/chart"
)

// publication is a throughput that others have published of a target.
type publication struct {
	Name, Direction string
	MTU             int
	Gbps            map[int]float64 // by cores
}

const publishedKernel = "in-kernel WireGuard"

// published returns the table of NetBird: github.com/netbirdio/docs, src/pages/manage/networks/sizing-routing-peers.mdx, 2026-06-26.
// There the instance forwards, and has many tunnels.
func published(target string) []publication {
	if target != "c6in.16xlarge" {
		return nil
	}
	const kernel, goes = publishedKernel, "wireguard-go"
	return []publication{
		{kernel, result.Encrypt, 1280, map[int]float64{1: 2, 2: 3, 4: 7, 8: 13, 16: 20, 32: 25, 64: 31}},
		{kernel, result.Encrypt, 8920, map[int]float64{64: 95}},
		{kernel, result.Decrypt, 1280, map[int]float64{1: 2, 2: 3, 4: 4, 8: 11, 16: 15, 32: 15, 64: 15}},
		{kernel, result.Decrypt, 8920, map[int]float64{64: 66}},
		{goes, result.Encrypt, 1280, map[int]float64{1: 1.6, 2: 2.3, 4: 6.8, 8: 6.8, 16: 6.8, 64: 5.8}},
		{goes, result.Decrypt, 1280, map[int]float64{1: 1.4, 2: 1.9, 4: 3.5, 8: 3.7, 16: 3.7, 64: 4.4}},
	}
}

// page returns the section of the target: its assumptions, and a table of all predictions.
func (t *target) page(p *result.Predictions) string {
	head := []string{"direction, MTU, spread"}
	for _, c := range t.Cores {
		head = append(head, fmt.Sprint(c))
	}
	head = append(head, fmt.Sprintf("busiest at %d", t.Cores[len(t.Cores)-1]))
	var rows [][]string
	for _, direction := range result.Directions() {
		for _, mtu := range t.MTUs {
			for _, spread := range t.Spread {
				row, busiest := []string{fmt.Sprintf("%s, %d, %s", direction, mtu, spread)}, ""
				for _, cores := range t.Cores {
					if f := p.Find(t.Name, &result.Row{Implementation: result.Ropewalk, Direction: direction, MTU: mtu, Spread: spread, Cores: cores}); f != nil {
						row, busiest = append(row, f.Text()), f.Limit
					}
				}
				rows = append(rows, append(row, busiest))
			}
			rows = append(rows, t.publishedRows(direction, mtu)...)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s.\n\n%s\n", strings.ToUpper(t.Hosts[:1])+t.Hosts[1:], table(head, rows))
	fmt.Fprintf(&b, "- *Assumed:* %s.\n- *Most likely wrong:* %s.\n", t.Assumed, t.Doubt)
	fmt.Fprintf(&b, "\n![Predicted throughput of %s](plots/predicted-%s.svg)\n", t.Name, t.Name)
	return b.String()
}

func (t *target) publishedRows(direction string, mtu int) (rows [][]string) {
	for _, other := range published(t.Name) {
		if other.Direction != direction || other.MTU != mtu {
			continue
		}
		row := []string{fmt.Sprintf("*%s, %d, published: %s*", direction, mtu, other.Name)}
		for _, cores := range t.Cores {
			cell := ""
			if g, ok := other.Gbps[cores]; ok {
				cell = fmt.Sprintf("*%v*", g)
			}
			row = append(row, cell)
		}
		rows = append(rows, append(row, ""))
	}
	return rows
}

// plot draws the predictions for spread on and the smallest MTU, with the published and the
// measured figures.
func (t *target) plot(p *result.Predictions, results map[string]result.Result) ([]byte, error) {
	var lines []chart.Series
	add := func(name string, dashed bool, value func(cores int) (float64, bool)) {
		s := chart.Series{Name: name, Dashed: dashed}
		for _, c := range t.Cores {
			if y, ok := value(c); ok && y > 0 {
				s.Points = append(s.Points, plotter.XY{X: float64(c), Y: y})
			}
		}
		if s.Points != nil {
			lines = append(lines, s)
		}
	}
	mtu := t.MTUs[0]
	for _, direction := range result.Directions() {
		of := func(value func(f *result.Prediction) float64) func(int) (float64, bool) {
			return func(cores int) (float64, bool) {
				f := p.Find(t.Name, &result.Row{Implementation: result.Ropewalk, Direction: direction, MTU: mtu, Spread: result.SpreadOn, Cores: cores})
				if f == nil {
					return 0, false
				}
				return value(f), true
			}
		}
		add(direction+": expected", false, of(func(f *result.Prediction) float64 { return f.Expected }))
		add(direction+": low", true, of(func(f *result.Prediction) float64 { return f.Low }))
		add(direction+": high", true, of(func(f *result.Prediction) float64 { return f.High }))
	}
	for _, other := range published(t.Name) {
		if other.MTU == mtu && other.Name == publishedKernel {
			add(other.Direction+": "+other.Name+", published", false, func(cores int) (float64, bool) { return other.Gbps[cores], true })
		}
	}
	for _, name := range slices.Sorted(maps.Keys(results)) {
		r := results[name]
		for _, direction := range result.Directions() {
			if r.Target == t.Name {
				add(direction+": measured, "+path.Base(name), false, measured(&r, direction, mtu))
			}
		}
	}
	return chart.Line(chart.Chart{
		Title:   fmt.Sprintf("%s, MTU %d, spread on", t.Name, mtu),
		Note:    "Predicted by the model before anybody measured: expected, and the range of all assumptions together.",
		Command: "make results",
	}, chart.Axis{Label: "Cores of the host under test", Log: true}, chart.Axis{Label: "Gbit/s received by applications", Log: true}, lines...)
}

// measured returns the median throughput of ropewalk with spread on, by cores.
func measured(r *result.Result, direction string, mtu int) func(cores int) (float64, bool) {
	return func(cores int) (float64, bool) {
		for _, w := range r.Rows {
			if w.Implementation == result.Ropewalk && w.Direction == direction && w.MTU == mtu && w.Spread == result.SpreadOn && w.Cores == cores {
				return median(w.Gbps), true
			}
		}
		return 0, false
	}
}
