// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// builder compiles test binaries, each once per run.
type builder struct {
	dir    string   // where they are put
	prefix []string // the command line in front of go
	built  map[string]string
}

// fuzzing returns a test binary of the target's package that guides the fuzzing engine.
func (b *builder) fuzzing(ctx context.Context, t target) (string, error) {
	return b.build(ctx, t, "fuzz", "-fuzz", "Fuzz")
}

// measuring returns a test binary of the target's package that counts how often each statement runs.
func (b *builder) measuring(ctx context.Context, t target) (string, error) {
	return b.build(ctx, t, "cover", "-covermode", "count", "-coverpkg", covered(t))
}

func (b *builder) build(ctx context.Context, t target, kind string, flags ...string) (string, error) {
	name := strings.ReplaceAll(t.dir, "/", ".") + "." + kind
	if at, ok := b.built[name]; ok {
		return at, nil
	}
	at, err := filepath.Abs(filepath.Join(b.dir, name))
	if err != nil {
		return "", err
	}
	argv := slices.Concat(b.prefix, []string{"go", "test", "-c", "-o", at}, flags, []string{"./" + t.dir})
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the tests of %s: %w\n%s", t.dir, err, out)
	}
	if _, err := os.Stat(at); err != nil {
		return "", fmt.Errorf("building the tests of %s: %w", t.dir, err)
	}
	b.built[name] = at
	return at, nil
}

// remove removes all binaries that were built.
func (b *builder) remove() (err error) {
	for name, at := range b.built {
		err = errors.Join(err, os.Remove(at))
		delete(b.built, name)
	}
	return err
}
