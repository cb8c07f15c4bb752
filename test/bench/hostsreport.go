// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/lab/bench"
	"github.com/ropewalk/ropewalk/test/bench/measure"
	"github.com/ropewalk/ropewalk/test/bench/result"
)

// hostsReport is the report of `bench hosts`: the result, and the samples behind it.
type hostsReport struct {
	result.Result
	cells       []cell
	measures    []measure.Measure
	missing     []string
	offline     bool // other cores were offline, so that rows with fewer than all are of the whole host
	forwarded   bool // by A, which has no row then: the model forwards nothing
	names       hostsNames
	samples     []sample
	predictions result.Predictions
}

// name fills in the target: the instance type of a cloud, or none.
func (r *hostsReport) name() {
	r.Target = cmp.Or(r.Target, strings.ToLower(strings.Join(strings.Fields(r.Under.Instance), "-")), "other")
}

// predict reads the predictions, if there are any.
func (r *hostsReport) predict(path string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, &r.predictions)
	}
	if err != nil {
		return fmt.Errorf("reading predictions: %w", err)
	}
	return nil
}

// values returns a figure of a test in a cell, by round.
func (r *hostsReport) values(c *cell, test, figure string) (list []float64) {
	for _, s := range r.samples {
		if v, ok := s.Figures[figure]; ok && s.Implementation == c.String() && s.Test == test {
			list = append(list, v)
		}
	}
	return list
}

// fill makes rows, figures and failures out of the samples.
func (r *hostsReport) fill() {
	r.Rows, r.Figures, r.Failures = nil, nil, slices.Clone(r.missing)
	for i := range r.cells {
		c := &r.cells[i]
		for j, test := range bulkTests() {
			if w := r.row(c, test, result.Directions()[j]); len(w.Gbps) > 0 && !r.forwarded && (r.offline || c.cores == r.Under.Cores) {
				r.Rows = append(r.Rows, w)
			}
		}
		name := c.name
		if r.forwarded && c.implementation != result.Bare {
			name += ", forwarded"
		}
		for _, w := range rows(r.measures) {
			if values := r.values(c, w.test, w.figure); len(values) > 0 {
				r.Figures = append(r.Figures, result.Figure{
					Configuration: name, MTU: c.mtu, Cores: c.cores, Test: w.test, What: w.what(r.measures), Unit: w.unit, Less: w.less, Values: values,
				})
			}
		}
	}
	r.Failures = append(r.Failures, failures(r.samples)...)
	for _, list := range [][]string{r.Failures, r.Under.Doctor, r.Other.Doctor} {
		r.names.hideAll(list)
	}
	r.Command = r.names.hide(r.Command)
}

// failures returns a line for each reason of each cell, with its tests.
func failures(samples []sample) (lines []string) {
	type key struct{ cell, reason string }
	tests := map[key][]string{}
	var order []key
	for _, s := range samples {
		reason, _, _ := strings.Cut(s.Error, "\n")
		k := key{s.Implementation, reason}
		if reason == "" || slices.Contains(tests[k], s.Test) {
			continue
		}
		if tests[k] == nil {
			order = append(order, k)
		}
		tests[k] = append(tests[k], s.Test)
	}
	for _, k := range order {
		lines = append(lines, fmt.Sprintf("%s (%s): %s", k.cell, strings.Join(tests[k], ", "), k.reason))
	}
	return lines
}

// what describes the test of a row.
func (w row) what(measures []measure.Measure) string {
	i := slices.IndexFunc(measures, func(m measure.Measure) bool { return m.Name == w.test })
	return measures[i].What
}

func (r *hostsReport) row(c *cell, test, direction string) result.Row {
	w := result.Row{
		Implementation: c.implementation, Direction: direction, MTU: c.mtu, Spread: c.spread, Underlay: c.underlay, Cores: c.cores,
		Gbps: r.values(c, test, valueFigure), BusyCores: r.values(c, test, busyFigure),
	}
	if planned := r.values(c, test, plannedFigure); len(planned) > 0 && len(planned) == len(w.Gbps) {
		w.Spread = result.SpreadPlanned
	}
	return w
}

// write writes the report into a new directory: result.json, report.md and plots.
func (r *hostsReport) write(dir string, out io.Writer) error {
	if len(r.samples) == 0 {
		return errors.New("no figures, and so no report")
	}
	r.fill()
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	text, err := r.JSON()
	if err != nil {
		return fmt.Errorf("encoding the result: %w", err)
	}
	files := r.plots()
	files["report.md"] = []byte(r.markdown(files))
	files["result.json"] = text
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return fmt.Errorf("writing the report: %w", err)
		}
	}
	fmt.Fprintf(out, "%s has the report\n", filepath.Join(dir, "report.md"))
	return nil
}

// full are the cells that all tests were taken in.
func (r *hostsReport) full() []cell {
	return slices.DeleteFunc(slices.Clone(r.cells), func(c cell) bool { return c.cores != r.cells[0].cores || c.mtu != r.cells[0].mtu })
}

// plots draws the figures that there are, as SVG.
func (r *hostsReport) plots() map[string][]byte {
	files := map[string][]byte{}
	note := fmt.Sprintf("Medians. Host A: %s, %d cores. MTU of the tunnel: %d.", r.Under.Processor, r.Under.Cores, r.cells[0].mtu)
	add := func(name, title, unit string, labels, names []string, value func(label, name int) float64) {
		values := make([][]float64, len(names))
		for n := range names {
			for l := range labels {
				values[n] = append(values[n], value(l, n))
			}
		}
		if svg := bench.Bars(title, note, unit, r.Command, labels, names, values); svg != nil {
			files[name+".svg"] = svg
		}
	}
	full := r.full()
	var labels []string
	for _, c := range full {
		labels = append(labels, c.name)
	}
	tests := func(name, title, unit string, names []string, list ...string) {
		add(name, title, unit, labels, names, func(l, n int) float64 { return median(r.values(&full[l], list[n], valueFigure)) })
	}
	tests("throughput", "TCP, 64 streams", "Gbit/s", []string{"A encrypts", "A decrypts"}, bulkTests()...)
	streams := []string{"1 stream", "4 streams", "16 streams", "64 streams"}
	tests("encrypt", "TCP from A to B", "Gbit/s", streams, "tcp1", "tcp4", "tcp16", "tcp64")
	tests("decrypt", "TCP from B to A", "Gbit/s", streams, "rev1", "rev4", "rev16", "rev64")
	tests("small", "Datagrams of 64 B with under 1 % lost", "kpps", []string{""}, "ndr64")
	tests("latency", "Round trip", "ms", []string{"idle", "under TCP of 4 streams"}, "rtt_idle", "rtt_load")
	r.coresPlot(add)
	return files
}

// coresPlot draws the throughput by cores of A, if there are several numbers of them.
func (r *hostsReport) coresPlot(add func(name, title, unit string, labels, names []string, value func(label, name int) float64)) {
	var cores []int
	for _, c := range r.cells {
		if !slices.Contains(cores, c.cores) {
			cores = append(cores, c.cores)
		}
	}
	if len(cores) < 2 {
		return
	}
	slices.Sort(cores)
	full := r.full()
	var labels, names []string
	for _, n := range cores {
		labels = append(labels, fmt.Sprintf("%d cores", n))
	}
	for _, c := range full {
		names = append(names, c.name)
	}
	for i, direction := range result.Directions() {
		add(direction+"-cores", "TCP, 64 streams, by cores of A: "+direction, "Gbit/s", labels, names, func(l, n int) float64 {
			c := full[n]
			c.cores = cores[l]
			return median(r.values(&c, bulkTests()[i], valueFigure))
		})
	}
}
