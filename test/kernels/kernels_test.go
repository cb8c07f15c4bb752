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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netlab"
	"github.com/ropewalk/ropewalk/test/kernels/plan"
)

const defaultTimeout = 25 * time.Minute

// TestKernels is the matrix: one pair of machines after the other, the two at once where go test -parallel allows it, as
// make test-kernels does on any machine. Their consoles are streamed, each line behind its kernel.
func TestKernels(t *testing.T) {
	if pkgs := missingTools(exec.LookPath); len(pkgs) > 0 {
		t.Fatalf("programs are missing; apt-get install %s", strings.Join(pkgs, " "))
	}
	list, err := chosen(os.Getenv("KERNELS"))
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
	ends, between := apart(list)
	for _, group := range []struct {
		name   string
		series []series
	}{{"ends", ends}, {"between", between}} { // those that have most to do first, and together
		t.Run(group.name, func(t *testing.T) {
			for _, s := range group.series {
				t.Run(s.name, func(t *testing.T) {
					t.Parallel()
					if err := failures[s.name]; err != nil {
						t.Fatal(err)
					}
					m.run(t, kernels[s.name])
				})
			}
		})
	}
	fmt.Printf("\n%s\n", table(seriesNames(list), m.results))
	if os.Getenv("KERNELS") == "" && os.Getenv("KERNELS_RUN") == "" {
		for _, test := range ranNowhere(seriesNames(list), m.results) {
			t.Errorf("%s was skipped on every kernel", test)
		}
	}
}

// apart separates the oldest and the newest from those between.
func apart(list []series) (ends, between []series) {
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

// matrixRun is what the machines share.
type matrixRun struct {
	t       *testing.T
	payload *payload

	mu      sync.Mutex
	results map[string]*results
}

func (m *matrixRun) run(t *testing.T, k *unpacked) {
	limit := timeout(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r := newResults()
	m.mu.Lock()
	m.results[k.series.name] = r
	m.mu.Unlock()
	c, err := newCards()
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
	say := func(format string, args ...any) {
		fmt.Printf("Linux %s: %s\nend of its console:\n%s\n", k.release, fmt.Sprintf(format, args...), r.Tail())
	}
	machine := func(ctx context.Context, r *results, steps []plan.Step) error {
		return runMachine(ctx, r, steps, func(ctx context.Context, steps []plan.Step) error {
			if err := m.payload.writeInitramfs(initramfs, k, steps); err != nil {
				return err
			}
			return boot(ctx, k, c, initramfs, r, echo)
		}, say)
	}
	began, steps := time.Now(), m.steps(k.series.name, limit)
	err = onceMore(ctx, r, machine(ctx, r, steps), steps, machine, say)
	t.Logf("Linux %s: %s, %d restarts", k.release, time.Since(began).Round(time.Second), r.restarts)
	if err != nil {
		t.Errorf("Linux %s: %v\nend of its console:\n%s", k.release, err, r.Tail())
	}
}

// steps run each test binary; its own timeout ends a hanging test with a trace of where it hangs, if there is time left.
func (m *matrixRun) steps(kernel string, limit time.Duration) []plan.Step {
	var steps []plan.Step
	for _, name := range m.payload.tests {
		left := elsewhere()
		if os.Getenv("KERNELS_PACKAGES") == "" {
			if spared(kernel, name) {
				continue
			}
			left = append(left, leftToOthers(kernel)...)
		}
		steps = append(steps, plan.Step{Name: name, Argv: skipping([]string{
			"/tests/" + name, "-test.v=test2json", "-test.parallel=10", "-test.timeout=" + (limit * 3 / 4).String(),
			"-test.run=" + os.Getenv("KERNELS_RUN"),
		}, left...)})
	}
	return steps
}
