// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/test/bench/result"
)

// markdown is the report for people. files are the plots.
func (r *hostsReport) markdown(files map[string][]byte) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Tunnels between two hosts: %s\n\nMeasured on %s by %s:\n\n    %s\n\n", r.Target, r.Day, r.By, r.Command)
	b.WriteString("Medians of the rounds. A is the host under test. *Encrypt*: A sends. *Decrypt*: A receives.\n\n")
	if r.forwarded {
		b.WriteString("A forwards: the traffic at its end is in a network behind the tunnel. Without a tunnel nothing is forwarded.\n\n")
	}
	fmt.Fprintf(&b, "## Where ropewalk is slower\n\n%s\n", r.slower())
	fmt.Fprintf(&b, "## TCP of 64 streams, and the model's prediction\n\n%s\n", r.rowTable())
	for _, c := range r.groups() {
		fmt.Fprintf(&b, "## MTU %d, %s of A\n\n%s\n", c.mtu, plural(c.cores, "core"), r.figureTable(&c))
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&b, "![%s](%s)\n\n", strings.TrimSuffix(name, ".svg"), name)
	}
	fmt.Fprintf(&b, "## Hosts\n\n%s\n", r.hostTable())
	if len(r.Failures) > 0 {
		fmt.Fprintf(&b, "## Not measured\n\n- %s\n\n", strings.Join(r.Failures, "\n- "))
	}
	b.WriteString("## For the project\n\n")
	if err := r.Check(); err != nil {
		fmt.Fprintf(&b, "`make results` would refuse result.json:\n\n- %s\n", strings.ReplaceAll(err.Error(), "\n", "\n- "))
	} else {
		fmt.Fprintf(&b, "result.json passes the checks of `make results`, as docs/results/%s/NAME.json.\n", r.Target)
	}
	return b.String()
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func markdownTable(head []string, lines [][]string) string {
	var b strings.Builder
	for _, cells := range slices.Concat([][]string{head, slices.Repeat([]string{"---"}, len(head))}, lines) {
		for i := range cells {
			cells[i] = strings.ReplaceAll(cells[i], "|", `\|`)
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	return b.String()
}

// groups are cells with one setup for each number of cores and MTU.
func (r *hostsReport) groups() (list []cell) {
	for _, c := range r.cells {
		if !slices.ContainsFunc(list, func(o cell) bool { return o.cores == c.cores && o.mtu == c.mtu }) {
			list = append(list, c)
		}
	}
	return list
}

// inGroup returns the cells with the cores and the MTU of c.
func (r *hostsReport) inGroup(c *cell) []cell {
	return slices.DeleteFunc(slices.Clone(r.cells), func(o cell) bool { return o.cores != c.cores || o.mtu != c.mtu })
}

// loss is a figure in which another implementation is better.
type loss struct {
	ratio float64 // below 1
	cells []string
}

// slower lists the figures in which ropewalk, with its defaults, is worse than another implementation, the worst first.
func (r *hostsReport) slower() string {
	var list []loss
	compared := 0
	for _, c := range r.cells {
		if c.implementation == result.Bare || c.implementation == result.Ropewalk {
			continue
		}
		mine := c
		mine.setup = setup{name: defaultSetup}
		for _, w := range rows(r.measures) {
			a, b := r.values(&mine, w.test, w.figure), r.values(&c, w.test, w.figure)
			if w.bare || len(a) == 0 || len(b) == 0 || median(a) == 0 || median(b) == 0 {
				continue
			}
			compared++
			ratio := median(a) / median(b)
			if w.less {
				ratio = 1 / ratio
			}
			if ratio < 1 {
				list = append(list, loss{ratio, []string{
					"`" + w.test + "`: " + w.what(r.measures) + ", " + w.unitLabel(), fmt.Sprint(c.mtu), fmt.Sprint(c.cores), digits(median(a)), c.name, digits(median(b)),
					fmt.Sprintf("%.2f", ratio),
				}})
			}
		}
	}
	switch {
	case compared == 0:
		return "There is nothing to compare: no other implementation was measured beside `ropewalk`.\n"
	case len(list) == 0:
		return fmt.Sprintf("Nowhere, in %s.\n", plural(compared, "comparison"))
	}
	slices.SortFunc(list, func(a, b loss) int {
		if a.ratio < b.ratio {
			return -1
		}
		return 1
	})
	lines := make([][]string, len(list))
	for i, l := range list {
		lines[i] = l.cells
	}
	return fmt.Sprintf("In %d of %s. A ratio below 1 is the other's, also where less is better (↓).\n\n", len(list), plural(compared, "comparison")) +
		markdownTable([]string{"test", "MTU", "cores", defaultSetup, "other", "its figure", "ratio"}, lines)
}

// rowTable has the rows of the result beside their predictions.
func (r *hostsReport) rowTable() string {
	var lines [][]string
	for _, w := range r.Rows {
		foretold, verdict := "none", ""
		if p := r.predictions.Find(r.Target, &w); p != nil {
			foretold, verdict = p.Text(), "inside"
			if m := median(w.Gbps); m < p.Low || m > p.High {
				verdict = "**outside**"
			}
		}
		name := w.Implementation
		if w.Underlay != "" {
			name += ", " + w.Underlay
		}
		lines = append(lines, []string{
			name, w.Direction, fmt.Sprint(w.MTU), w.Spread, fmt.Sprint(w.Cores), digits(median(w.Gbps)),
			digits(slices.Min(w.Gbps)) + "–" + digits(slices.Max(w.Gbps)), digits(median(w.BusyCores)), foretold, verdict,
		})
	}
	if lines == nil {
		return "No rows: `--tests` has neither `tcp64` nor `rev64`, the cores were not taken offline, or A forwards.\n"
	}
	return markdownTable([]string{"implementation", "direction", "MTU", "spread", "cores", "Gbit/s", "rounds", "busy cores of A", "predicted", ""}, lines)
}

// figureTable has all figures of a group, with a column for each setup.
func (r *hostsReport) figureTable(group *cell) string {
	list := r.inGroup(group)
	head := []string{"test", "unit"}
	for _, c := range list {
		head = append(head, c.name)
	}
	var lines [][]string
	for _, w := range rows(r.measures) {
		line, found := []string{"`" + w.test + "`", w.unitLabel()}, false
		if w.figure == valueFigure {
			line[0] += ": " + w.what(r.measures)
		}
		for _, c := range list {
			text := nothing
			if v := r.values(&c, w.test, w.figure); len(v) > 0 {
				text, found = digits(median(v)), true
			}
			line = append(line, text)
		}
		if found {
			lines = append(lines, line)
		}
	}
	return markdownTable(head, lines)
}

func (r *hostsReport) hostTable() string {
	var lines [][]string
	add := func(name string, of func(h *result.Host) string) {
		a, b := of(&r.Under), of(&r.Other)
		lines = append(lines, []string{name, a, b})
	}
	add("processor", func(h *result.Host) string {
		return fmt.Sprintf("%s, %s, microcode %s", h.Processor, plural(h.Cores, "core"), h.Microcode)
	})
	add("machine", func(h *result.Host) string { return h.Instance })
	add("kernel", func(h *result.Host) string { return h.Kernel })
	add("network device", func(h *result.Host) string {
		return fmt.Sprintf("%s, driver %s %s, %s, %s, MTU %d, %v Gbit/s", h.NIC, h.Driver, h.Firmware, plural(h.Queues, "queue"), h.RSS, h.MTU, h.LinkGbps)
	})
	add("offloads that are on", func(h *result.Host) string {
		var on []string
		for _, name := range slices.Sorted(maps.Keys(h.Offloads)) {
			if h.Offloads[name] {
				on = append(on, name)
			}
		}
		return strings.Join(on, ", ")
	})
	add("sysctls", func(h *result.Host) string {
		var list []string
		for _, name := range slices.Sorted(maps.Keys(h.Sysctls)) {
			list = append(list, name+" = "+h.Sysctls[name])
		}
		return strings.Join(list, ", ")
	})
	add("ropewalk doctor", func(h *result.Host) string { return strings.Join(h.Doctor, "; ") })
	add("ropewalk", func(h *result.Host) string { return fmt.Sprintf("%s for %s, SHA-256 %s", h.Version, h.Arch, h.SHA256) })
	return markdownTable([]string{"", "A", "B"}, lines)
}
