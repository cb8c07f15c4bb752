// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/tools/cover"
)

// coverage is the set of statement blocks of a package.
type coverage map[position]block

type position struct {
	file      string
	line, col int
}

type block struct {
	statements int
	seen       uint64 // bit k: the block ran about 2^k times in one run; 0 if it never ran
}

// add adds the blocks that other reached, and reports whether c has grown. As in other fuzzers, a block that runs twice as often is.
func (c coverage) add(other coverage) (grown bool) {
	for at, b := range other {
		old := c[at]
		grown = grown || b.seen&^old.seen != 0
		c[at] = block{b.statements, old.seen | b.seen}
	}
	return grown
}

// share is the share of statements that ran.
func (c coverage) share() float64 {
	all, ran := 0, 0
	for _, b := range c {
		all += b.statements
		if b.seen != 0 {
			ran += b.statements
		}
	}
	if all == 0 {
		return 0
	}
	return float64(ran) / float64(all)
}

func readProfile(file string) (coverage, error) {
	profiles, err := cover.ParseProfiles(file)
	if err != nil {
		return nil, fmt.Errorf("reading a coverage profile: %w", err)
	}
	c := coverage{}
	for _, p := range profiles {
		for _, b := range p.Blocks {
			var seen uint64
			if b.Count > 0 {
				seen = 1 << (bits.Len(uint(b.Count)) - 1)
			}
			c[position{p.FileName, b.StartLine, b.StartCol}] = block{b.NumStmt, seen}
		}
	}
	return c, nil
}

// measurement runs inputs of one target.
type measurement struct {
	target target
	binary string
	prefix []string
	dir    string // a copy of the package's directory, since go test reads inputs in testdata/fuzz only
}

// newMeasurement makes the copy, of symbolic links, without inputs.
func newMeasurement(t target, binary string, prefix []string, dir string) (*measurement, error) {
	m := &measurement{t, binary, prefix, dir}
	err := errors.Join(os.RemoveAll(dir), os.MkdirAll(m.inputs(), 0o755))
	err = errors.Join(err, linkAll(t.dir, dir, "testdata"))
	err = errors.Join(err, linkAll(filepath.Join(t.dir, "testdata"), filepath.Join(dir, "testdata"), "fuzz"))
	if err != nil {
		return nil, fmt.Errorf("preparing to measure the coverage of %s: %w", t, err)
	}
	return m, nil
}

func (m *measurement) inputs() string { return filepath.Join(m.dir, "testdata", "fuzz", m.target.name) }

// linkAll makes links in a directory to all files of another one, if it exists.
func linkAll(from, to string, except ...string) error {
	files, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, f := range files {
		if slices.Contains(except, f.Name()) {
			continue
		}
		source, absErr := filepath.Abs(filepath.Join(from, f.Name()))
		err = errors.Join(err, absErr, os.Symlink(source, filepath.Join(to, f.Name())))
	}
	return err
}

// profileOfSeeds returns the coverage of the target's own seeds.
func (m *measurement) profileOfSeeds(ctx context.Context) (coverage, error) {
	return m.profile(ctx, "seed#")
}

// profileOf returns the coverage of one input. It fails if the input has types that the target does not take.
func (m *measurement) profileOf(ctx context.Context, e entry) (coverage, error) {
	file := filepath.Join(m.inputs(), e.name)
	if err := os.WriteFile(file, e.data, 0o644); err != nil {
		return nil, fmt.Errorf("measuring the coverage of an input: %w", err)
	}
	c, err := m.profile(ctx, e.name+"$")
	return c, errors.Join(err, os.Remove(file))
}

// profile returns the coverage of the inputs whose names match a pattern.
func (m *measurement) profile(ctx context.Context, inputs string) (coverage, error) {
	file, err := filepath.Abs(m.dir + ".profile")
	if err != nil {
		return nil, err
	}
	argv := slices.Concat(m.prefix, []string{m.binary, "-test.run", m.target.pattern() + "/^" + inputs, "-test.coverprofile", file})
	if out, _, err := execute(ctx, m.dir, argv); err != nil {
		return nil, fmt.Errorf("measuring the coverage of %s: %w\n%s", m.target, err, out)
	}
	c, err := readProfile(file)
	return c, errors.Join(err, os.Remove(file))
}
