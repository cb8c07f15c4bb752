// SPDX-License-Identifier: Apache-2.0

//go:build kernels

package kernels

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/kernels/plan"
)

const defaultTimeout = 25 * time.Minute

// TestKernels runs the matrix in two groups. The machines of a group run in parallel if go test -parallel allows it, as make
// test-kernels does. It prints the lines of all consoles with the kernel's series as prefix.
func TestKernels(t *testing.T) {
	if pkgs := missingTools(exec.LookPath); len(pkgs) > 0 {
		t.Fatalf("programs are missing; apt-get install %s", strings.Join(pkgs, " "))
	}
	list, err := selectSeries(os.Getenv("KERNELS"))
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	kernels, failures := fetchKernels(t, root, list)
	p, err := buildPayload(t.Context(), root, t.TempDir(), packages())
	if err != nil {
		t.Fatal(err)
	}
	m := &matrixRun{t: t, payload: p, results: map[string]*results{}}
	ends, between := splitMatrix(list)
	for _, group := range []struct {
		name   string
		series []series
	}{{"ends", ends}, {"between", between}} { // the machines with most tests first, in parallel
		t.Run(group.name, func(t *testing.T) {
			for _, s := range group.series {
				t.Run(s.name, func(t *testing.T) {
					t.Parallel()
					err := failures[s.name]
					if errors.Is(err, errUnreachable) && os.Getenv("KERNELS") == "" {
						t.Skipf("this machine cannot fetch the kernel: %v", err)
					}
					if err != nil {
						t.Fatal(err)
					}
					m.run(t, kernels[s.name])
				})
			}
		})
	}
	fmt.Printf("\n%s\n%s\n", table(seriesNames(list), m.results), strings.Join(m.failures, "\n\n"))
	if os.Getenv("KERNELS") == "" && os.Getenv("KERNELS_RUN") == "" {
		for _, test := range skippedEverywhere(seriesNames(list), m.results) {
			t.Errorf("%s was skipped on every kernel", test)
		}
	}
}

// splitMatrix separates the oldest and the newest series from the others.
func splitMatrix(list []series) (ends, between []series) {
	for _, s := range list {
		if s.name == oldest() || s.name == newest() {
			ends = append(ends, s)
		} else {
			between = append(between, s)
		}
	}
	return ends, between
}

func fetchKernels(t *testing.T, root string, list []series) (map[string]*unpacked, map[string]error) {
	cache := cmp.Or(os.Getenv("KERNELS_CACHE"), filepath.Join(root, "build", "kernels"))
	cache, err := filepath.Abs(cache)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	f := &fetcher{cache: cache, logf: func(format string, args ...any) { fmt.Printf(format+"\n", args...) }}
	return f.Fetch(t.Context(), list)
}

func packages() []string {
	if s := os.Getenv("KERNELS_PACKAGES"); s != "" {
		return strings.Fields(s)
	}
	return defaultPackages
}

func timeout(t *testing.T) time.Duration {
	s := os.Getenv("KERNELS_TIMEOUT")
	if s == "" {
		return defaultTimeout
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatalf("KERNELS_TIMEOUT: %v", err)
	}
	return d
}

// matrixRun is the state that all machines share.
type matrixRun struct {
	t       *testing.T
	payload *payload

	mu       sync.Mutex
	results  map[string]*results
	failures []string // printed again at the end, which may be all that is kept of a log
}

func (m *matrixRun) run(t *testing.T, k *unpacked) {
	limit := timeout(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r := newResults()
	m.mu.Lock()
	m.results[k.series.name] = r
	m.mu.Unlock()
	c, err := newNICs()
	if err != nil && !errors.Is(err, netlab.ErrPrivileges) {
		t.Fatal(err)
	}
	defer func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	}()
	echo := func(line string) {
		if !isFraming(line) {
			fmt.Printf("%-5s| %s\n", k.series.name, printable(line))
		}
	}
	initramfs := filepath.Join(t.TempDir(), "initramfs")
	logf := func(format string, args ...any) {
		fmt.Printf("Linux %s: %s\nend of the console:\n%s\n", k.release, fmt.Sprintf(format, args...), r.Tail())
	}
	machine := func(ctx context.Context, r *results, steps []plan.Step) error {
		return runMachine(ctx, r, steps, func(ctx context.Context, steps []plan.Step) error {
			if err := m.payload.writeInitramfs(initramfs, k, steps); err != nil {
				return err
			}
			return boot(ctx, k, c, initramfs, r, echo)
		}, logf)
	}
	began, steps := time.Now(), m.steps(k.series.name, limit)
	err = retryFailed(ctx, r, machine(ctx, r, steps), steps, machine, logf)
	t.Logf("Linux %s: %s, %d restarts", k.release, time.Since(began).Round(time.Second), r.restarts)
	if err != nil {
		failure := fmt.Sprintf("Linux %s: %v\nend of the console:\n%s", k.release, err, r.Tail())
		m.mu.Lock()
		m.failures = append(m.failures, failure)
		m.mu.Unlock()
		t.Error(failure)
	}
}

// steps returns a step for each test binary. Its -test.timeout is shorter than the machine's, so that a hanging test ends with its
// goroutine stacks.
func (m *matrixRun) steps(kernel string, limit time.Duration) []plan.Step {
	var steps []plan.Step
	for _, name := range m.payload.tests {
		skipped := hostOnlyTests()
		if os.Getenv("KERNELS_PACKAGES") == "" {
			if omitted(kernel, name) {
				continue
			}
			skipped = append(skipped, testsOfOtherKernels(kernel)...)
		}
		run := os.Getenv("KERNELS_RUN")
		if os.Getenv("KERNELS_GATE") != "" {
			if slices.Contains(fullSteps(), name) {
				continue
			}
			skipped = append(skipped, fullTests(kernel)...)
			run = cmp.Or(run, gateTests()[name])
		}
		steps = append(steps, plan.Step{Name: name, Argv: skipTests([]string{
			"/tests/" + name, "-test.v=test2json", "-test.parallel=10", "-test.timeout=" + (limit * 3 / 4).String(),
			"-test.run=" + run,
		}, skipped...)})
	}
	return steps
}
