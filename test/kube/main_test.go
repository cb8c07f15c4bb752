// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// agentBinary builds the agent once, from the tested source, as in images.
var agentBinary = sync.OnceValues(func() (string, error) { return build("./cmd/ropewalk-agent") })

// ropewalkBinary builds the program of engines once.
var ropewalkBinary = sync.OnceValues(func() (string, error) { return build("./cmd/ropewalk") })

// build builds a program of the agent's module. It is static, so that it runs in an empty container.
func build(program string) (string, error) {
	bin := filepath.Join(suite.TempDir(), filepath.Base(program))
	build := exec.Command("go", "build", "-o", bin, program)
	build.Dir = filepath.Join("..", "..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", program, err, out)
	}
	return bin, nil
}

func TestMain(m *testing.M) {
	code := 1
	if err := restoreModulePath(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	suite.close()
	os.Exit(code)
}

// restoreModulePath restores a path that -trimpath has cut, by which the API server's test package finds its files.
func restoreModulePath() error {
	if _, file, _, _ := runtime.Caller(0); filepath.IsAbs(file) {
		return nil
	}
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		return fmt.Errorf("reading GOMODCACHE: %w", err)
	}
	return errors.Join(os.Setenv("TEST_SRCDIR", strings.TrimSpace(string(cache))), os.Setenv("TEST_WORKSPACE", "."))
}
