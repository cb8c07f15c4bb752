// SPDX-License-Identifier: Apache-2.0

// Package golden compares a test's output with a file. `go test ./pkg/x -update` rewrites the files.
package golden

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Update reports whether -update was given.
func Update() bool { return *update }

// Check fails the test unless the file at path contains got. With -update it writes got to path and creates the directories.
func Check[Text string | []byte](t testing.TB, path string, got Text) {
	t.Helper()
	if *update {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(got), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (run the test with -update to create it)", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (-want +got; if the new text is correct, run the test with -update):\n%s", path, diff)
	}
}

// CheckSection is like Check for the part of the file between the lines begin and end, which are markers. The rest of the file is not compared.
func CheckSection(t testing.TB, path, begin, end, got string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin+"\n")
	_, after, okEnd := strings.Cut(rest, end+"\n")
	if !ok || !okEnd {
		t.Fatalf("%s: got no lines %q and %q, want both in this order", path, begin, end)
	}
	Check(t, path, before+begin+"\n"+got+end+"\n"+after)
}
