// SPDX-License-Identifier: Apache-2.0

// Package golden is for tests that compare what they get with a file. `go test ./pkg/x -update` writes such files anew.
package golden

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Update reports whether files are to be written.
func Update() bool { return *update }

// Check fails the test unless the file at path holds got. With -update it writes got there, and makes the directories.
func Check[Text string | []byte](t testing.TB, path string, got Text) {
	t.Helper()
	if *update {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(got), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (-update writes it)", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (if it is as it should be now, -update):\n%s", path, diff)
	}
}
