// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rogpeppe/go-internal/txtar"
)

// archives is the directory of the corpora that are kept, in the repository.
const archives = "test/fuzz/corpus"

// Bounds of an archive. Larger inputs stay in the working corpus of the machine that found them.
const (
	maxArchive = 32 << 10
	maxEntries = 64
	maxEntry   = 4 << 10
)

// archiveOf returns the path of a target's archive.
func archiveOf(dir string, t target) string {
	return filepath.Join(dir, filepath.FromSlash(t.dir), t.name+".txtar")
}

// entry is an input in Go's corpus format, which is text.
type entry struct {
	name string
	data []byte
}

// nameOf returns the name that the engine gives an input.
func nameOf(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data))[:16] }

// readArchive returns the entries of an archive, none if there is no such file.
func readArchive(file string) ([]entry, error) {
	a, err := txtar.ParseFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading a corpus: %w", err)
	}
	entries := make([]entry, 0, len(a.Files))
	for _, f := range a.Files {
		entries = append(entries, entry{f.Name, f.Data})
	}
	return entries, nil
}

// writeArchive replaces an archive. A target without entries has none.
func writeArchive(file string, entries []entry) error {
	if len(entries) == 0 {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing an empty corpus: %w", err)
		}
		return nil
	}
	a := new(txtar.Archive)
	for _, e := range entries {
		a.Files = append(a.Files, txtar.File{Name: e.name, Data: e.data})
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("writing a corpus: %w", err)
	}
	if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
		return fmt.Errorf("writing a corpus: %w", err)
	}
	return nil
}

// unpack adds the entries of a target's archive to its working corpus.
func unpack(file, corpus string) error {
	entries, err := readArchive(file)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(corpus, 0o755); err != nil {
		return fmt.Errorf("unpacking a corpus: %w", err)
	}
	for _, e := range entries {
		if err := os.WriteFile(filepath.Join(corpus, nameOf(e.data)), e.data, 0o644); err != nil {
			return fmt.Errorf("unpacking a corpus: %w", err)
		}
	}
	return nil
}

// fits reports whether an entry may be added to an archive.
func fits(kept []entry, e entry) bool {
	size := len(e.data)
	for _, k := range kept {
		size += len(k.data)
	}
	const names = maxEntries * len("-- 0123456789abcdef --\n")
	return len(kept) < maxEntries && len(e.data) <= maxEntry && size+names <= maxArchive
}
