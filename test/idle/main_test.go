// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

var measure = flag.Duration("measure", time.Second, "how long to count a daemon's wakeups; from 30s on it is left to settle first")

// settleFor is how long what a handshake has begun goes on: the last is a keepalive after ten seconds, and a look whether
// data was answered after fifteen.
const settleFor = 20 * time.Second

// settle waits until a new session has come to rest, if there is time to measure that.
func settle() {
	if *measure >= 30*time.Second {
		time.Sleep(settleFor)
	}
}

// program is the ropewalk binary, found or built once for all tests.
type program struct {
	once sync.Once
	dir  string // set and removed by TestMain
	path string
	err  error
}

var ropewalk program

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "idle-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		ropewalk.dir = dir
		return m.Run()
	}())
}

func (p *program) need(t *testing.T) string {
	t.Helper()
	p.once.Do(p.find)
	if errors.Is(p.err, exec.ErrNotFound) {
		t.Skip("needs ROPEWALK_BIN, or the go command to build cmd/ropewalk")
	}
	if p.err != nil {
		t.Fatal(p.err)
	}
	return p.path
}

func (p *program) find() {
	if p.path = os.Getenv("ROPEWALK_BIN"); p.path != "" {
		_, p.err = os.Stat(p.path)
		return
	}
	p.path = filepath.Join(p.dir, "ropewalk")
	cmd := exec.Command("go", "build", "-o", p.path, "github.com/ropewalk/ropewalk/cmd/ropewalk")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		p.err = fmt.Errorf("building ropewalk: %w\n%s", err, out)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}
