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

// systemd is Debian's.
const systemd = "/lib/systemd/systemd"

// TestServiceLivesAsTheUnitSays installs the package under a systemd of its own, and has it start, reload, lose, miss and stop
// tunnels. testdata/service.sh says what is looked at.
func TestServiceLivesAsTheUnitSays(t *testing.T) {
	out := underSystemd(t, string(read(t, "testdata/service.sh")))
	if !strings.HasSuffix(out, "\ndone\n") {
		t.Fatal(out)
	}
	t.Log(out)
}

// underSystemd runs a script of bash as a service of a systemd of its own, where what was built is in /opt/test, and returns
// what it writes.
func underSystemd(t *testing.T, script string) string {
	t.Helper()
	needRoot(t)
	if _, err := os.Stat(systemd); err != nil {
		t.Skip("needs systemd: ", err)
	}
	dir := workDirectory(t)
	output(t, "cp", deb(t), built(t, "SHA256SUMS"), dir)
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
		t.Fatalf("nothing was run: %v\n%s", err, console)
	}
	return string(out)
}

// workDirectory is one for boot.sh.
func workDirectory(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "layer"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// cgroup makes a control group (version 2) that a systemd may have for itself. It is removed, with what is in it, at the end.
func cgroup(t *testing.T) *os.File {
	t.Helper()
	at := t.TempDir()
	if err := unix.Mount("cgroup2", at, "cgroup2", 0, ""); err != nil {
		t.Skip("needs control groups: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	path := filepath.Join(at, fmt.Sprintf("ropewalk-package-%d", os.Getpid()))
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Skip("needs control groups: ", err)
	}
	t.Cleanup(func() { removeGroups(t, path) })
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// removeGroups removes a control group and those below it, which processes may be leaving still.
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
			t.Errorf("the control group %s stays", path)
			return
		}
	}
}
