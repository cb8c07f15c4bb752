// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/ropewalk/ropewalk/test/expect"
)

func TestReplaceRemovesFileOfCrash(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "new", "file")
	expect.NoError(t, Replace(path, []byte("first")))
	expect.NoError(t, os.WriteFile(path+".tmp", []byte("half"), 0o644))
	expect.NoError(t, Replace(path, []byte("second")))
	has(t, path, "second")
}

func TestRemoveLeavesNoTemporaryFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "file")
	expect.NoError(t, Remove(path))
	expect.NoError(t, Replace(path, []byte("first")))
	expect.NoError(t, os.WriteFile(path+".tmp", []byte("half"), 0o600))
	expect.NoError(t, Remove(path))
	if all, err := os.ReadDir(filepath.Dir(path)); err != nil || len(all) != 0 {
		t.Errorf("left %v, %v", all, err)
	}
}

func TestCreateKeepsExistingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "file")
	expect.NoError(t, Create(path, []byte("first")))
	if err := Create(path, []byte("second")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v, want %v", err, fs.ErrExist)
	}
	has(t, path, "first")
}

// has fails the test unless the file has the text, is its owner's only, and is alone in its directory.
func has(t *testing.T, path, want string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if string(text) != want {
		t.Errorf("got %q, error %v, want %q", text, err, want)
	}
	st, err := os.Stat(path)
	expect.NoError(t, err)
	if st.Mode() != 0o600 {
		t.Errorf("mode %v", st.Mode())
	}
	if all, err := os.ReadDir(filepath.Dir(path)); err != nil || len(all) != 1 {
		t.Errorf("left %v, %v", all, err)
	}
}
