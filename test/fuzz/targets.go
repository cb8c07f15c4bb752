// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/build"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// target is a fuzz target.
type target struct{ dir, name string }

func (t target) String() string { return t.dir + "/" + t.name }

// pattern is the regular expression of -test.run and -test.fuzz for the target.
func (t target) pattern() string { return "^" + t.name + "$" }

var declaration = regexp.MustCompile(`(?m)^func (Fuzz[A-Za-z0-9_]+)\(`)

// discover returns the targets under pkg and test, in order, whose names match.
func discover(root string, only *regexp.Regexp) ([]target, error) {
	var found []target
	for _, top := range []string{"pkg", "test"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(file string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir():
				return skipModule(file)
			case !strings.HasSuffix(file, "_test.go"):
				return nil
			}
			names, err := targetsOf(file)
			dir, relErr := filepath.Rel(root, filepath.Dir(file))
			for _, name := range names {
				if t := (target{filepath.ToSlash(dir), name}); only.MatchString(t.String()) {
					found = append(found, t)
				}
			}
			return errors.Join(err, relErr)
		})
		if err != nil {
			return nil, fmt.Errorf("looking for fuzz targets: %w", err)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("looking for fuzz targets: none matches %q", only)
	}
	slices.SortFunc(found, func(a, b target) int { return cmp.Or(cmp.Compare(a.dir, b.dir), cmp.Compare(a.name, b.name)) })
	return found, nil
}

// skipModule skips a directory that is a module of its own.
func skipModule(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
		return filepath.SkipDir
	}
	return nil
}

// targetsOf returns the names of the targets in a file, none if it is not for this platform.
func targetsOf(file string) ([]string, error) {
	if ok, err := build.Default.MatchFile(filepath.Split(file)); err != nil || !ok {
		return nil, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, m := range declaration.FindAllSubmatch(text, -1) {
		names = append(names, string(m[1]))
	}
	return names, nil
}
