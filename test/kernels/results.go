// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/ropewalk/ropewalk/test/kernels/plan"
)

// Outcomes of a test, as in the table.
const (
	passed       = "pass"
	failed       = "FAIL"
	skipped      = "skip"
	lost         = "LOST" // started and did not end
	absent       = "-"
	passedSecond = "2nd" // failed, and passed in the second run
)

// results parses go test's verbose output from a console and records the outcome of each test. It is not safe for concurrent use.
type results struct {
	begun    int    // number of steps that began
	step     string // name prefix of the tests of the current step
	order    []string
	outcome  map[string]string
	seconds  map[string]string
	ended    map[string]bool // steps that ended
	failed   map[string]bool // steps that ended with a non-zero exit code
	tail     []string        // the last lines of the console
	done     bool            // init has finished
	exitCode int             // the highest exit code of init and the steps
	oops     string          // the first oops message of the kernel
	emulator bool            // the emulator had a fault (faultEmulator)
	restarts int             // number of restarts of the machine
}

const tailLines = 80

func newResults() *results {
	return &results{outcome: map[string]string{}, seconds: map[string]string{}, ended: map[string]bool{}, failed: map[string]bool{}}
}

// With -test.v=test2json a control character marks go test's own output, which may start in the middle of a line. It distinguishes
// results from the output of tests and the kernel.
var (
	started  = regexp.MustCompile(`\x16=== RUN +(\S+)$`)
	finished = regexp.MustCompile(`\x16--- (PASS|FAIL|SKIP): (\S+) \(([0-9.]+)s\)$`)
)

// Line parses one line of the console.
func (r *results) Line(line string) {
	if !isFraming(line) {
		r.tail = append(r.tail, printable(line))
		r.tail = r.tail[max(0, len(r.tail)-tailLines):]
	}
	if m := started.FindStringSubmatch(line); m != nil {
		r.set(r.step+m[1], lost)
	}
	if m := finished.FindStringSubmatch(line); m != nil {
		r.set(r.step+m[2], map[string]string{"PASS": passed, "FAIL": failed, "SKIP": skipped}[m[1]])
		r.seconds[r.step+m[2]] = m[3]
	}
	switch c := parseKernelMessage(line); {
	case c.fault == faultOops && r.oops == "":
		r.oops = c.text
	case c.fault == faultEmulator && (r.oops == "" || strings.Contains(r.oops, "double fault")): // no oops before it
		r.emulator = true
	}
	r.marker(line)
}

// marker parses a line with one of init's markers.
func (r *results) marker(line string) {
	if rest, ok := strings.CutPrefix(line, plan.StepMarker); ok {
		r.begun++
		r.step = strings.TrimSpace(rest) + "."
	}
	if rest, ok := strings.CutPrefix(line, plan.StepEndMarker); ok {
		name, exit, _ := strings.Cut(strings.TrimSpace(rest), " ")
		if code, err := strconv.Atoi(exit); err == nil {
			r.ended[name], r.failed[name] = true, code != 0
			r.exitCode = max(r.exitCode, code)
		}
	}
	if rest, ok := strings.CutPrefix(line, plan.Marker); ok {
		code, err := strconv.Atoi(strings.TrimSpace(rest))
		r.done, r.exitCode = err == nil, max(r.exitCode, code)
	}
}

// set records the outcome of a test. A failure is kept even if the test runs again after a restart of the machine.
func (r *results) set(test, outcome string) {
	before, known := r.outcome[test]
	if !known {
		r.order = append(r.order, test)
	}
	if before != failed {
		r.outcome[test] = outcome
	}
}

func (r *results) withOutcome(outcome string) []string {
	var tests []string
	for _, test := range r.order {
		if r.outcome[test] == outcome {
			tests = append(tests, test)
		}
	}
	return tests
}

// isTestLine reports whether go test, and not a test or the kernel, wrote the line.
func isTestLine(line string) bool {
	return strings.Contains(line, "\x16=== ") || strings.Contains(line, "\x16--- ")
}

// isFraming reports whether the line is only for the harness and not worth showing.
func isFraming(line string) bool {
	return strings.Contains(line, "\x16=== ") || strings.HasPrefix(line, plan.AliveMarker) ||
		strings.HasPrefix(line, plan.StepEndMarker)
}

// Err returns an error unless all steps ran and all tests passed on a healthy kernel.
func (r *results) Err() error {
	var bad []string
	for _, test := range r.order {
		if o := r.outcome[test]; o == failed || o == lost {
			bad = append(bad, topLevel(test))
		}
	}
	switch {
	case r.oops != "":
		return fmt.Errorf("kernel oops: %s", strings.Join(append([]string{r.oops}, unique(bad)...), ", "))
	case len(bad) > 0:
		return fmt.Errorf("failed: %s", strings.Join(unique(bad), ", "))
	case !r.done:
		return errNoMarker
	case r.exitCode != 0:
		return fmt.Errorf("exit code %d", r.exitCode)
	case len(r.withOutcome(passed)) == 0:
		return fmt.Errorf("no test ran")
	}
	return nil
}

// Tail returns the end of the console.
func (r *results) Tail() string { return strings.Join(r.tail, "\n") }

// table returns a table with a column for each kernel and a row for each test. Subtests have a row only if one did not pass.
func table(kernels []string, by map[string]*results) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "test\t%s\n", strings.Join(kernels, "\t"))
	for _, test := range allTests(kernels, by) {
		cells, plain := []string{}, true
		for _, k := range kernels {
			cell := absent
			if r := by[k]; r != nil && r.outcome[test] != "" {
				cell = r.outcome[test]
			}
			plain = plain && (cell == passed || cell == absent)
			if s := by[k]; s != nil && s.seconds[test] != "" {
				cell += " " + s.seconds[test] + "s"
			}
			cells = append(cells, cell)
		}
		if !plain || !strings.Contains(test, "/") {
			fmt.Fprintf(w, "%s\t%s\n", test, strings.Join(cells, "\t"))
		}
	}
	_ = w.Flush()
	return b.String()
}

// allTests returns every test once, in the order of the first kernel that ran it.
func allTests(kernels []string, by map[string]*results) []string {
	var tests []string
	seen := map[string]bool{}
	for _, k := range kernels {
		if by[k] == nil {
			continue
		}
		for _, test := range by[k].order {
			if !seen[test] {
				seen[test] = true
				tests = append(tests, test)
			}
		}
	}
	slices.SortStableFunc(tests, func(a, b string) int {
		return strings.Compare(topLevel(a), topLevel(b))
	})
	return tests
}

// skippedEverywhere returns the tests that every kernel skipped, of the packages whose tests depend on these kernels. Tests of other
// packages also run on the host, which has more tools.
func skippedEverywhere(kernels []string, by map[string]*results) []string {
	return slices.DeleteFunc(allTests(kernels, by), func(test string) bool {
		step, _, _ := strings.Cut(test, ".")
		if !slices.Contains([]string{"agent", "interop", "spread"}, step) {
			return true
		}
		return slices.ContainsFunc(kernels, func(k string) bool {
			return by[k] != nil && by[k].outcome[test] != skipped && by[k].outcome[test] != ""
		})
	})
}

func topLevel(test string) string {
	top, _, _ := strings.Cut(test, "/")
	return top
}

// printable drops control characters, which could change the state of the terminal that shows the console.
func printable(line string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, line)
}
