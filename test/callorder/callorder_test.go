// SPDX-License-Identifier: Apache-2.0

package callorder

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/test/expect"
)

// recorder is a test that notes its errors.
type recorder struct {
	testing.TB
	errors []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func TestUpwardCallsAndUnlistedFilesAreReported(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"doc.go":    "// Package p is an example:\n//   - entry points: first, second\n//   - helpers: third\npackage p\n",
		"first.go":  "package p\n\nfunc first() { third() }\n",
		"second.go": "package p\n\ntype T int\n\nfunc (T) second() {}\n",
		"third.go":  "package p\n\nfunc third() { T(0).second() }\n",
		"fourth.go": "package p\n",
	} {
		expect.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	unlisted, upward := "doc.go does not list fourth.go", "third.go calls .second of second.go, which is above it"
	for _, tt := range []struct {
		o    Options
		want []string
	}{
		{Options{}, []string{unlisted, upward}},
		{Options{Upward: []string{"third second"}}, []string{unlisted}},
		{Options{Ambiguous: []string{".second"}}, []string{unlisted}},
		{Options{Upward: []string{"third second", "third first"}}, []string{unlisted, `accepted upward call "third first" does not exist`}},
		{Options{Upward: []string{"third second"}, Least: 3}, []string{unlisted, "found only 2 calls between files, want at least 3"}},
	} {
		r := &recorder{TB: t}
		Check(r, tt.o)
		if !slices.Equal(r.errors, tt.want) {
			t.Errorf("%+v: got %q, want %q", tt.o, r.errors, tt.want)
		}
	}
}
