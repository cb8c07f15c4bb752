// SPDX-License-Identifier: Apache-2.0

package package_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// systemd is Debian's path of the systemd program.
const systemd = "/lib/systemd/systemd"

// TestSystemdServiceLifecycle installs the packages under a separate systemd. testdata/service.sh starts, reloads, upgrades, kills and
// stops tunnels there, and has the assertions.
func TestSystemdServiceLifecycle(t *testing.T) {
	out := underSystemd(t, string(read(t, "testdata/service.sh")))
	if !strings.HasSuffix(out, "\ndone\n") {
		t.Fatal(out)
	}
	t.Log(out)
}

// underSystemd runs a bash script as a service of a separate systemd and returns its output. The artifacts are in /opt/test.
func underSystemd(t *testing.T, script string) string {
	t.Helper()
	needRoot(t)
	if _, err := os.Stat(systemd); err != nil {
		t.Skip("needs systemd: ", err)
	}
	dir := workDirectory(t)
	output(t, "cp", deb(t), rpm(t), artifact(t, "SHA256SUMS"), dir)
	if err := os.WriteFile(filepath.Join(dir, "script"), []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	boot := exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "--uts", "--ipc", "--cgroup",
		"bash", "testdata/boot.sh", dir)
	boot.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup(t).Fd())}
	console, err := boot.CombinedOutput()
	out, _ := os.ReadFile(filepath.Join(dir, "output"))
	if len(out) == 0 {
		t.Fatalf("the script did not run: %v\n%s", err, console)
	}
	return string(out)
}

// workDirectory returns a work directory for boot.sh.
func workDirectory(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "layer"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// cgroup creates a cgroup (version 2) for a separate systemd. It is removed with its children when the test ends.
func cgroup(t *testing.T) *os.File {
	t.Helper()
	at := t.TempDir()
	if err := unix.Mount("cgroup2", at, "cgroup2", 0, ""); err != nil {
		t.Skip("needs cgroup v2: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	path := filepath.Join(at, fmt.Sprintf("ropewalk-package-%d", os.Getpid()))
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Skip("needs cgroup v2: ", err)
	}
	t.Cleanup(func() { removeGroups(t, path) })
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// removeGroups removes a cgroup and its children. It retries, because processes may still be exiting.
func removeGroups(t *testing.T, path string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		var dirs []string
		_ = filepath.WalkDir(path, func(p string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return nil
		})
		for i := len(dirs) - 1; i >= 0; i-- {
			_ = unix.Rmdir(dirs[i])
		}
		if _, err := os.Stat(path); err != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("removing cgroup %s timed out", path)
			return
		}
	}
}
