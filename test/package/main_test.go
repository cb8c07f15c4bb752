// SPDX-License-Identifier: Apache-2.0

// Package package_test tests the artifacts of `make release` as a user installs them.
package package_test

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

var dist = flag.String("dist", "", "directory with the artifacts of `make release`; if empty, the tests that need them are skipped")

// artifact returns the only artifact whose name matches.
func artifact(t *testing.T, pattern string) string {
	t.Helper()
	if *dist == "" {
		t.Skip("needs the artifacts of `make release`: run make test-package")
	}
	files, err := filepath.Glob(filepath.Join(*dist, pattern))
	if err != nil || len(files) != 1 {
		t.Fatalf("files matching %s in %s: got %q, %v; want one", pattern, *dist, files, err)
	}
	path, err := filepath.Abs(files[0])
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// program returns the path of the ropewalk binary for this machine.
func program(t *testing.T) string { return artifact(t, "ropewalk-linux-"+runtime.GOARCH) }

// deb returns the path of the Debian package for this machine.
func deb(t *testing.T) string { return artifact(t, "ropewalk_*_"+runtime.GOARCH+".deb") }

// rpm returns the path of the RPM package for this machine.
func rpm(t *testing.T) string {
	return artifact(t, "ropewalk-[0-9]*."+map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]+".rpm")
}

// output runs a program and returns its output.
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
