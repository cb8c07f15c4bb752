// SPDX-License-Identifier: Apache-2.0

// Package package_test looks at what `make dist` and `make image` built, as those who install it will.
package package_test

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

var dist = flag.String("dist", "", "where `make dist` put what it built; without it, what needs that is skipped")

// built returns the one file in the directory of what was built whose name matches.
func built(t *testing.T, pattern string) string {
	t.Helper()
	if *dist == "" {
		t.Skip("needs what `make dist` builds: make test-package")
	}
	files, err := filepath.Glob(filepath.Join(*dist, pattern))
	if err != nil || len(files) != 1 {
		t.Fatalf("%s in %s: %q, %v", pattern, *dist, files, err)
	}
	path, err := filepath.Abs(files[0])
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// program is the one for this machine.
func program(t *testing.T) string { return built(t, "ropewalk-linux-"+runtime.GOARCH) }

// deb is the package for this machine.
func deb(t *testing.T) string { return built(t, "ropewalk_*_"+runtime.GOARCH+".deb") }

// output runs a program and returns what it writes.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func needTool(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skip("needs ", name)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}
