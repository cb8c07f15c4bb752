// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// deadline limits one sandbox; most take a second.
const deadline = 2 * time.Minute

// TestDocumentedCommandsWork runs each shell block of the documentation in its own sandbox.
func TestDocumentedCommandsWork(t *testing.T) {
	needSandbox(t)
	runs, _, err := plan(pages(t))
	if err != nil || len(runs) < 5 {
		t.Fatal(len(runs), err)
	}
	fixtures, err := os.ReadFile("testdata/fixtures.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range runs {
		t.Run(strings.ReplaceAll(r.blocks[0].Name(), "/", "_"), func(t *testing.T) {
			t.Parallel()
			for _, tool := range optional() {
				if regexp.MustCompile(`(?m)(^|[|(;] *)` + tool + ` `).MatchString(r.script("")) {
					needTool(t, tool)
				}
			}
			out, err := inSandbox(t, r.script(string(fixtures)))
			if err != nil || !strings.Contains(out, "\ndone\n") { // a daemon may write after it
				t.Fatalf("%s, %q: %v\n%s", r.blocks[0].Name(), r.blocks[0].Heading, err, out)
			}
			t.Log(out)
		})
	}
}

// TestWgQuickFixtureWorksWithKernelWireGuard lets `ropewalk show` fail, as it does for an interface of the kernel's WireGuard.
func TestWgQuickFixtureWorksWithKernelWireGuard(t *testing.T) {
	needSandbox(t)
	needTool(t, "wg-quick")
	fixtures, err := os.ReadFile("testdata/fixtures.sh")
	if err != nil {
		t.Fatal(err)
	}
	out, err := inSandbox(t, string(fixtures)+"ropewalk() { if [ \"$1\" = show ]; then return 1; fi; command ropewalk \"$@\"; }\nwg_quick\necho done\n")
	if err != nil || !strings.Contains(out, "\ndone\n") {
		t.Error(err, out)
	}
}

// optional returns programs that blocks call and that a machine may lack. If any other program is missing, the test fails.
func optional() []string { return []string{"curl", "jq", "wg", "wg-quick"} }

// TestSandboxIsolatesTheMachine changes files, network devices and sysctls in a sandbox.
func TestSandboxIsolatesTheMachine(t *testing.T) {
	needSandbox(t)
	mark := filepath.Join("/etc", "ropewalk-docs-test")
	out, err := inSandbox(t, "set -eu\nexec 2>&1\necho x >"+mark+"\ntest -s "+mark+"\necho x >/src/ropewalk-docs-test\nip link add docs0 type veth\n"+
		"echo 1 >/proc/sys/net/ipv4/ip_forward\nfor of in /proc/sys/kernel/panic /sys/kernel/mm/ksm/run; do\n"+
		"\tif [ -e $of ]; then was=$(cat $of); if echo \"$was\" >$of; then exit 1; fi; fi\ndone\necho done\n")
	if err != nil || !strings.HasSuffix(out, "done\n") {
		t.Error(err, out)
	}
	for _, path := range []string{mark, filepath.Join(root, "ropewalk-docs-test"), "/sys/class/net/docs0"} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s exists outside the sandbox", path)
		}
	}
}

// TestSandboxIncludesSeparateMounts checks that a separate file system, such as /usr on some machines, is readable and writable in a
// sandbox.
func TestSandboxIncludesSeparateMounts(t *testing.T) {
	needSandbox(t)
	out, err := inPreparedSandbox(t, "mount -t tmpfs tmpfs /srv && echo mine >/srv/file && exec \"$@\"", "set -eu\ncat /srv/file\necho theirs >/srv/file\ncat /srv/file\n")
	if err != nil || out != "mine\ntheirs\n" {
		t.Error(err, out)
	}
}

// inSandbox runs a bash script in a sandbox and returns its output.
func inSandbox(t *testing.T, script string) (string, error) {
	t.Helper()
	return inPreparedSandbox(t, `exec "$@"`, script)
}

// inPreparedSandbox is inSandbox with a script that first prepares the machine's files in the sandbox's mount namespace. prepare must
// end with exec "$@".
func inPreparedSandbox(t *testing.T, prepare, script string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"layer", "bin"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, path := range map[string]string{"ropewalk": ropewalk.Need(t), "wireguard-go": wireguardGo.Need(t)} {
		path, err := filepath.Abs(path)
		if err == nil {
			err = os.Symlink(path, filepath.Join(dir, "bin", name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "script"), []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	repository, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", append(namespaces(), "bash", "-c", prepare, "prepare", "bash", "testdata/sandbox.sh", dir, repository)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// namespaces returns the options of unshare(1) for the namespaces of a sandbox.
func namespaces() []string {
	return []string{"--mount", "--pid", "--fork", "--kill-child", "--net", "--uts", "--ipc"}
}

// needSandbox skips the test if this process may not create namespaces, overlays or TUN devices. It does not run sandbox.sh, so that
// an error in it is not skipped.
func needSandbox(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for namespaces")
	}
	for _, tool := range []string{"unshare", "bash", "ip"} {
		needTool(t, tool)
	}
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		t.Skip("needs TUN devices: ", err)
	}
	f.Close()
	const probe = `cd "$1" && mount -t tmpfs tmpfs . && cd "$1" && mkdir up work root bpf && mount -t bpf bpf bpf &&
		mount -t overlay overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" root`
	out, err := exec.Command("unshare", append(namespaces(), "bash", "-c", probe, "probe", t.TempDir())...).CombinedOutput()
	if err != nil {
		t.Skipf("needs namespaces, overlay and BPF file systems: %v %s", err, out)
	}
}

func needTool(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skip("needs ", name)
	}
}
