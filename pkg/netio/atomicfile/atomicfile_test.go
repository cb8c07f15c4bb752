// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
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

// TestConcurrentWritersLeaveWholeFile: two processes may write a file at the same time.
func TestConcurrentWritersLeaveWholeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() {
			for range 10 {
				if err := Write(path, bytes.Repeat([]byte{'a' + byte(i)}, 1000*(i+1)), 0o600); err != nil {
					t.Error(err)
					return
				}
				text, err := os.ReadFile(path)
				if err != nil || len(text) == 0 || len(text) != 1000*(int(text[0]-'a')+1) || bytes.Count(text, text[:1]) != len(text) {
					t.Errorf("read %d bytes, error %v", len(text), err)
					return
				}
			}
		})
	}
	writers.Wait()
}
