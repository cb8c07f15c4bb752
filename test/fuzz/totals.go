// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// total is the sum of all slices of a target.
type total struct {
	Given, CPU time.Duration // the slices, and the CPU time of their processes
	Executions int64
	Entries    int     // new ones in the working corpus
	Kept       int     // in the archive
	Coverage   float64 // of the package, by seeds and archive; 0 if unknown
	Findings   []string
}

// totals is the sum of all runs.
type totals struct {
	Since   time.Time
	Targets map[string]*total
}

// readTotals reads the file, or begins anew if there is none.
func readTotals(file string) (*totals, error) {
	t := &totals{Since: time.Now(), Targets: map[string]*total{}}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err == nil {
		err = json.Unmarshal(text, t)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the totals of earlier runs: %w", err)
	}
	return t, nil
}

func (t *totals) write(file string) error {
	text, err := json.MarshalIndent(t, "", "  ")
	if err == nil {
		err = os.WriteFile(file, append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("writing the totals: %w", err)
	}
	return nil
}

// of returns the total of a target.
func (t *totals) of(name target) *total {
	if t.Targets[name.String()] == nil {
		t.Targets[name.String()] = new(total)
	}
	return t.Targets[name.String()]
}

// add adds the outcome of a slice.
func (t *total) add(o outcome, slice time.Duration) {
	t.Given += slice
	t.CPU += o.cpu
	t.Executions += o.executions
	t.Entries += o.entries
	if o.finding != "" && !slices.Contains(t.Findings, o.finding) {
		t.Findings = append(t.Findings, o.finding)
	}
}

// print writes the table of all targets that ran, as Markdown.
func (t *totals) print(out io.Writer) {
	var sum total
	fmt.Fprintln(out, "| target | package | CPU minutes | executions | per CPU second | new inputs | kept | coverage | findings |")
	fmt.Fprintln(out, "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
	for _, name := range slices.Sorted(maps.Keys(t.Targets)) {
		e := t.Targets[name]
		coverage := "-"
		if e.Coverage > 0 {
			coverage = fmt.Sprintf("%.0f %%", 100*e.Coverage)
		}
		fmt.Fprintf(out, "| `%s` | `%s` | %s | %s |\n", path.Base(name), path.Dir(name), e.figures(coverage), findings(e.Findings))
		sum.CPU += e.CPU
		sum.Executions += e.Executions
		sum.Entries += e.Entries
		sum.Kept += e.Kept
		sum.Findings = append(sum.Findings, e.Findings...)
	}
	fmt.Fprintf(out, "| all | | %s | %d |\n", sum.figures(""), len(sum.Findings))
	fmt.Fprintf(out, "\n%.1f CPU hours since %s\n", sum.CPU.Hours(), t.Since.UTC().Format("2006-01-02 15:04 UTC"))
}

func (t *total) figures(coverage string) string {
	rate := float64(t.Executions) / cmp.Or(t.CPU.Seconds(), 1)
	return fmt.Sprintf("%.1f | %s | %s | %d | %d | %s",
		t.CPU.Minutes(), thousands(t.Executions), thousands(int64(rate)), t.Entries, t.Kept, coverage)
}

func findings(list []string) string {
	if len(list) == 0 {
		return "0"
	}
	return fmt.Sprintf("%d: `%s`", len(list), strings.Join(list, "`, `"))
}

// thousands writes a number with a comma between groups of digits.
func thousands(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
