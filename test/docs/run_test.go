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

// deadline is for one room; most take a second.
const deadline = 2 * time.Minute

// TestCommandsOfTheDocumentationWork runs them, each block in a room of its own.
func TestCommandsOfTheDocumentationWork(t *testing.T) {
	needRooms(t)
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
			out, err := inRoom(t, r.script(string(fixtures)))
			if err != nil || !strings.Contains(out, "\ndone\n") { // a daemon may have said something since
				t.Fatalf("%s, %q: %v\n%s", r.blocks[0].Name(), r.blocks[0].Heading, err, out)
			}
			t.Log(out)
		})
	}
}

// TestWgQuickIsThereWhereTheKernelHasWireGuard: wg0 is the kernel's then, which ropewalk refuses to show.
func TestWgQuickIsThereWhereTheKernelHasWireGuard(t *testing.T) {
	needRooms(t)
	needTool(t, "wg-quick")
	fixtures, err := os.ReadFile("testdata/fixtures.sh")
	if err != nil {
		t.Fatal(err)
	}
	out, err := inRoom(t, string(fixtures)+"ropewalk() { if [ \"$1\" = show ]; then return 1; fi; command ropewalk \"$@\"; }\nwg_quick\necho done\n")
	if err != nil || !strings.Contains(out, "\ndone\n") {
		t.Error(err, out)
	}
}

// optional are programs that blocks call and not every machine has. What is not among them is a mistake where it is missing.
func optional() []string { return []string{"curl", "jq", "wg", "wg-quick"} }

// TestRoomsKeepWhatHappensInThem from the machine: files, links, the kernel's variables.
func TestRoomsKeepWhatHappensInThem(t *testing.T) {
	needRooms(t)
	mark := filepath.Join("/etc", "ropewalk-docs-test")
	out, err := inRoom(t, "set -eu\nexec 2>&1\necho x >"+mark+"\ntest -s "+mark+"\necho x >/src/ropewalk-docs-test\nip link add docs0 type veth\n"+
		"echo 1 >/proc/sys/net/ipv4/ip_forward\nfor of in /proc/sys/kernel/panic /sys/kernel/mm/ksm/run; do\n"+
		"\tif [ -e $of ]; then was=$(cat $of); if echo \"$was\" >$of; then exit 1; fi; fi\ndone\necho done\n")
	if err != nil || !strings.HasSuffix(out, "done\n") {
		t.Error(err, out)
	}
	for _, path := range []string{mark, filepath.Join(root, "ropewalk-docs-test"), "/sys/class/net/docs0"} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is there", path)
		}
	}
}

// TestRoomsHaveWhatIsMountedApart and keep what happens to it, as where /usr is a file system of its own.
func TestRoomsHaveWhatIsMountedApart(t *testing.T) {
	needRooms(t)
	out, err := inRoomOf(t, "mount -t tmpfs tmpfs /srv && echo mine >/srv/file && exec \"$@\"", "set -eu\ncat /srv/file\necho theirs >/srv/file\ncat /srv/file\n")
	if err != nil || out != "mine\ntheirs\n" {
		t.Error(err, out)
	}
}

// inRoom runs a script of bash in a room and returns what it writes.
func inRoom(t *testing.T, script string) (string, error) {
	t.Helper()
	return inRoomOf(t, `exec "$@"`, script)
}

// inRoomOf is inRoom on a machine that a script, which ends with exec "$@", has prepared in the mount namespace of the room.
func inRoomOf(t *testing.T, prepare, script string) (string, error) {
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
	cmd := exec.CommandContext(ctx, "unshare", append(namespaces(), "bash", "-c", prepare, "prepare", "bash", "testdata/room.sh", dir, repository)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// namespaces are those of a room, as unshare(1) calls them.
func namespaces() []string {
	return []string{"--mount", "--pid", "--fork", "--kill-child", "--net", "--uts", "--ipc"}
}

// needRooms skips where this process may not make what rooms are made of. That room.sh fails is no reason.
func needRooms(t *testing.T) {
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
