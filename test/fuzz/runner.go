// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// runner fuzzes targets in turn.
type runner struct {
	options
	targets  []target // those without a finding in this run
	builder  *builder
	totals   *totals
	diag     io.Writer
	touched  map[target]bool // those that ran
	findings int             // of this run
}

func newRunner(o options, targets []target, diag io.Writer) (*runner, error) {
	bin := filepath.Join(o.work, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return nil, err
	}
	r := &runner{
		options: o, targets: slices.Clone(targets), diag: diag, touched: map[target]bool{},
		builder: &builder{dir: bin, prefix: o.exec, built: map[string]string{}},
	}
	for _, t := range targets {
		if err := unpack(archiveOf(archives, t), filepath.Join(r.cache(t), t.name)); err != nil {
			return nil, err
		}
	}
	var err error
	r.totals, err = readTotals(r.totalsFile())
	return r, err
}

// cache is the directory of the working corpora of a package, each in a directory with its target's name.
func (r *runner) cache(t target) string {
	return filepath.Join(r.work, "corpus", filepath.FromSlash(t.dir))
}

func (r *runner) totalsFile() string { return filepath.Join(r.work, "totals.json") }

// run fuzzes until the time is over or ctx ends, then updates archives and prints the table. It fails if there was a finding.
func (r *runner) run(ctx context.Context, out io.Writer) error {
	all := slices.Clone(r.targets)
	fuzzErr := r.fuzzAll(ctx, time.Duration(r.hours*float64(time.Hour)))
	// An interrupt or an error ends fuzzing only: the new inputs are kept.
	archivesErr := r.updateArchives(context.WithoutCancel(ctx), all)
	err := errors.Join(fuzzErr, archivesErr, r.totals.write(r.totalsFile()))
	r.totals.print(out)
	if r.findings > 0 {
		findingsErr := fmt.Errorf("%d targets have findings: run go test on their packages to see the failures", r.findings)
		return errors.Join(findingsErr, err)
	}
	return err
}

// fuzzAll gives slices to targets until the time is over.
func (r *runner) fuzzAll(ctx context.Context, limit time.Duration) error {
	slice := r.sliceOf(limit)
	for end := time.Now().Add(limit); ctx.Err() == nil && len(r.targets) > 0; {
		left := time.Until(end)
		if left < time.Second {
			break
		}
		if err := r.fuzzOne(ctx, r.next(), min(slice, left), left); err != nil && ctx.Err() == nil {
			return err
		}
		if err := r.totals.write(r.totalsFile()); err != nil {
			return err
		}
	}
	return nil
}

// sliceOf returns the length of slices: the longest with which each target has its share of the time.
func (r *runner) sliceOf(limit time.Duration) time.Duration {
	weights := 0
	for _, t := range r.targets {
		weights += weight(t)
	}
	return min(r.slice, max(time.Second, limit/time.Duration(max(weights, 1))).Round(time.Second))
}

// next returns the target with the least time for its weight.
func (r *runner) next() target {
	used := func(t target) float64 { return r.totals.of(t).Given.Seconds() / float64(weight(t)) }
	return slices.MinFunc(r.targets, func(a, b target) int {
		return cmp.Or(cmp.Compare(used(a), used(b)), cmp.Compare(weight(b), weight(a)))
	})
}

// fuzzOne runs one slice of a target, and prints a line about it.
func (r *runner) fuzzOne(ctx context.Context, t target, slice, left time.Duration) error {
	binary, err := r.builder.fuzzing(ctx, t)
	if err != nil {
		return err
	}
	cache, err := filepath.Abs(r.cache(t))
	if err != nil {
		return err
	}
	o, err := fuzz(ctx, r.exec, binary, t, cache, slice.Round(time.Second).String())
	if err != nil {
		return fmt.Errorf("fuzzing %s: %w", t, err)
	}
	r.touched[t] = true
	r.totals.of(t).add(o, slice)
	fmt.Fprintf(r.diag, "%d min left: %s: %s executions, %d new inputs\n", int(math.Ceil(left.Minutes())), t, thousands(o.executions), o.entries)
	if o.finding == "" {
		return nil
	}
	return r.report(ctx, t, binary, o)
}

// report keeps the output of a finding, and fuzzes its target no more: the failing input would end each slice at its start.
func (r *runner) report(ctx context.Context, t target, binary string, o outcome) error {
	r.findings++
	r.targets = slices.DeleteFunc(r.targets, func(other target) bool { return other == t })
	file, err := saveFinding(filepath.Join(r.work, "findings"), t, o.output)
	if err != nil {
		return fmt.Errorf("keeping the output of a finding: %w", err)
	}
	again := "not again in a second run"
	if _, _, err := execute(ctx, t.dir, []string{binary, "-test.run", t.pattern() + "/^" + filepath.Base(o.finding) + "$"}); err != nil {
		again = "again in a second run"
	}
	fmt.Fprintf(r.diag, "FINDING: %s fails with %s, %s; its output is in %s\n", t, o.finding, again, file)
	return nil
}

// updateArchives minimises the working corpora of targets that ran, and measures their coverage. After an error it goes on with the next one.
func (r *runner) updateArchives(ctx context.Context, all []target) (err error) {
	for i, t := range all {
		if e := r.totals.of(t); !r.touched[t] && e.Coverage > 0 {
			continue
		}
		kept, updateErr := r.updateArchive(ctx, t)
		if updateErr != nil {
			err = errors.Join(err, fmt.Errorf("updating the corpus of %s, which stays as it is: %w", t, updateErr))
			continue
		}
		fmt.Fprintf(r.diag, "corpus %d of %d: %s: %d inputs kept\n", i+1, len(all), t, kept)
	}
	return err
}

func (r *runner) updateArchive(ctx context.Context, t target) (int, error) {
	binary, err := r.builder.measuring(ctx, t)
	if err != nil {
		return 0, err
	}
	corpus := filepath.Join(r.cache(t), t.name)
	m, err := newMeasurement(t, binary, r.exec, filepath.Join(r.work, "measure", strings.ReplaceAll(t.String(), "/", ".")))
	if err != nil {
		return 0, err
	}
	kept, reached, err := m.minimize(ctx, corpus)
	err = errors.Join(err, os.RemoveAll(m.dir))
	if err != nil {
		return 0, err
	}
	e := r.totals.of(t)
	e.Kept, e.Coverage = len(kept), reached.share()
	return len(kept), writeArchive(archiveOf(archives, t), kept)
}
