// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// maxCandidates bounds the inputs that are measured per target, each by a process. The smallest ones are measured.
const maxCandidates = 300

// minimize returns the smallest inputs of a working corpus that together reach all its coverage, as far as they fit into an archive.
// Inputs that add nothing to the target's own seeds are left out. Coverage is that of seeds and returned inputs.
func (m *measurement) minimize(ctx context.Context, corpus string) (kept []entry, reached coverage, err error) {
	candidates, err := readCorpus(corpus)
	if err != nil {
		return nil, nil, err
	}
	reached = coverage{}
	seeds, err := m.profileOfSeeds(ctx)
	if err != nil {
		return nil, nil, err
	}
	reached.add(seeds)
	for _, e := range candidates[:min(len(candidates), maxCandidates)] {
		c, err := m.profileOf(ctx, e)
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		// An input with other types, from before a change of the target, fails.
		if err == nil && fits(kept, e) && reached.add(c) {
			kept = append(kept, e)
		}
	}
	slices.SortFunc(kept, func(a, b entry) int { return cmp.Compare(a.name, b.name) })
	return kept, reached, nil
}

// readCorpus returns the inputs of a working corpus, the smallest first.
func readCorpus(dir string) ([]entry, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading a corpus: %w", err)
	}
	var entries []entry
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return nil, fmt.Errorf("reading a corpus: %w", err)
		}
		entries = append(entries, entry{nameOf(data), data})
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(len(a.data), len(b.data)), bytes.Compare(a.data, b.data))
	})
	return entries, nil
}
