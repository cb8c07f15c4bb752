// SPDX-License-Identifier: Apache-2.0

// Package program locates or builds the programs that tests run.
package program

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Program is a program under test. The first call of Need locates or builds it for all tests of a package, whose TestMain must
// call Main. The environment variable Env may contain its path. If it is empty, the go command builds Package.
type Program struct {
	Env, Package string

	dir  string // where it is built
	once sync.Once
	path string
	err  error
}

// Ropewalk returns the ropewalk program of this module.
func Ropewalk() *Program {
	return &Program{Env: "ROPEWALK_BIN", Package: "github.com/ropewalk/ropewalk/cmd/ropewalk"}
}

// Main runs the tests of a package that needs programs and removes the built ones afterwards. It returns the exit code.
func Main(m *testing.M, programs ...*Program) int {
	dir, err := os.MkdirTemp("", "ropewalk-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	for _, p := range programs {
		p.dir = dir
	}
	return m.Run()
}

// Need returns the program's path. It skips the test if Env is empty and there is no go command.
func (p *Program) Need(t testing.TB) string {
	t.Helper()
	p.once.Do(p.find)
	if errors.Is(p.err, exec.ErrNotFound) {
		t.Skipf("needs %s, or the go command to build %s", p.Env, p.Package)
	}
	if p.err != nil {
		t.Fatal(p.err)
	}
	return p.path
}

func (p *Program) find() {
	if p.path = os.Getenv(p.Env); p.path != "" {
		_, p.err = os.Stat(p.path)
		return
	}
	p.path = filepath.Join(p.dir, filepath.Base(p.Package))
	cmd := exec.Command("go", "build", "-o", p.path, p.Package)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		p.err = fmt.Errorf("building %s: %w\n%s", p.Package, err, out)
	}
}
