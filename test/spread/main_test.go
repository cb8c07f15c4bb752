// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// ropewalk finds or builds the binary once for all tests.
type ropewalk struct {
	once sync.Once
	dir  string // set and removed by TestMain
	path string
	err  error
}

var program ropewalk

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "spread-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program.dir = dir
		return m.Run()
	}())
}

func (r *ropewalk) need(t *testing.T) string {
	t.Helper()
	r.once.Do(r.find)
	if errors.Is(r.err, exec.ErrNotFound) {
		t.Skip("needs ROPEWALK_BIN, or the go command to build cmd/ropewalk")
	}
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.path
}

func (r *ropewalk) find() {
	if r.path = os.Getenv("ROPEWALK_BIN"); r.path != "" {
		_, r.err = os.Stat(r.path)
		return
	}
	r.path = filepath.Join(r.dir, "ropewalk")
	cmd := exec.Command("go", "build", "-o", r.path, "github.com/ropewalk/ropewalk/cmd/ropewalk")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		r.err = fmt.Errorf("building ropewalk: %w\n%s", err, out)
	}
}
