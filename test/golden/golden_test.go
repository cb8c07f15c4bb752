// SPDX-License-Identifier: Apache-2.0

package golden_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ropewalk/ropewalk/test/golden"
)

// failures counts failures and does not fail the test.
type failures struct {
	testing.TB
	errors, fatal int
}

func (f *failures) Helper()               {}
func (f *failures) Errorf(string, ...any) { f.errors++ }
func (f *failures) Fatalf(format string, args ...any) {
	f.fatal++
	panic(fmt.Sprintf(format, args...))
}

func TestDifferingFileFailsTest(t *testing.T) {
	if golden.Update() {
		t.Skip("-update would rewrite the differing file")
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("text\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, path, "text\n")
	golden.Check(t, path, []byte("text\n"))
	var f failures
	golden.Check(&f, path, "other\n")
	func() {
		defer func() { _ = recover() }()
		golden.Check(&f, path+".absent", "")
	}()
	if f.errors != 1 || f.fatal != 1 {
		t.Errorf("%d files differ and %d are missing, want 1 and 1", f.errors, f.fatal)
	}
}

func TestOnlySectionIsCompared(t *testing.T) {
	if golden.Update() {
		t.Skip("-update would rewrite the differing file")
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("before\n<begin>\ntext\n<end>\nafter\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	golden.CheckSection(t, path, "<begin>", "<end>", "text\n")
	var f failures
	golden.CheckSection(&f, path, "<begin>", "<end>", "other\n")
	for _, markers := range [][2]string{{"<other>", "<end>"}, {"<begin>", "<other>"}, {"<end>", "<begin>"}} {
		func() {
			defer func() { _ = recover() }()
			golden.CheckSection(&f, path, markers[0], markers[1], "text\n")
		}()
	}
	if f.errors != 1 || f.fatal != 3 {
		t.Errorf("%d sections differ and %d lack a marker, want 1 and 3", f.errors, f.fatal)
	}
}
