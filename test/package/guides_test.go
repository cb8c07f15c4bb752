// SPDX-License-Identifier: Apache-2.0

package package_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/test/docs/page"
)

// TestInstallationGuideWorks runs the commands of docs/install.md as a service of a separate systemd.
func TestInstallationGuideWorks(t *testing.T) {
	commands := shellBlocks(t, "docs/install.md")
	if len(commands) < 10 {
		t.Fatalf("docs/install.md has %d command blocks, want at least 10", len(commands))
	}
	runGuide(t, strings.Join(commands, "\n"))
}

// TestQuickStartMigratesFromWGQuickAndBack runs the systemd commands of docs/quickstart.md with the package installed and wg-quick@wg0
// active. wg-quick uses wireguard-go if the kernel has no WireGuard.
func TestQuickStartMigratesFromWGQuickAndBack(t *testing.T) {
	needTool(t, "wg-quick")
	commands := shellBlocks(t, "docs/quickstart.md")
	if len(commands) < 2 || !strings.Contains(commands[0], "enable --now ropewalk@wg0") || !strings.Contains(commands[1], "enable --now wg-quick@wg0") {
		t.Fatalf("the first blocks are %q", commands)
	}
	other, err := exec.LookPath("wireguard-go")
	if err != nil {
		t.Skip("needs wireguard-go: ", err)
	}
	if other, err = filepath.Abs(other); err != nil {
		t.Fatal(err)
	}
	host := "/mnt/host" // boot.sh mounts this machine's root here. /tmp, which may contain wireguard-go, differs under systemd.
	runGuide(t, fmt.Sprintf(quickStart, host+other, commands[0], commands[1]))
}

const quickStart = `
dpkg -i --force-depends ./*.deb
(umask 077; printf '[Interface]\nPrivateKey = %%s\nAddress = 10.99.0.1/24\nListenPort = 51820\n' "$(ropewalk genkey)" >/etc/wireguard/wg0.conf)
mkdir -p /etc/systemd/system/wg-quick@.service.d
printf '[Service]\nEnvironment=WG_QUICK_USERSPACE_IMPLEMENTATION=%s\n' >/etc/systemd/system/wg-quick@.service.d/go.conf
systemctl daemon-reload
systemctl enable --now wg-quick@wg0
key=$(wg show wg0 public-key)
%s
systemctl is-active ropewalk@wg0
if systemctl is-active wg-quick@wg0; then exit 1; fi
test "$(ropewalk show wg0 public-key)" = "$key"
ip -br addr show wg0 | grep -F 10.99.0.1/24
%s
systemctl is-active wg-quick@wg0
if systemctl is-active ropewalk@wg0; then exit 1; fi
test "$(wg show wg0 public-key)" = "$key"`

// runGuide runs the commands of a page in a directory with the artifacts.
func runGuide(t *testing.T, commands string) {
	t.Helper()
	script := "set -euo pipefail\ntrap 'echo \"FAILED: $BASH_COMMAND\"; journalctl --no-pager -n 50' ERR\n" +
		"exec 2>&1\nset -x\nip link set lo up\ncd /opt/test\n" + commands + "\nset +x\necho done\n"
	out := underSystemd(t, script)
	if !strings.HasSuffix(out, "\ndone\n") {
		t.Fatal(out)
	}
	t.Log(out)
}

// shellBlocks returns the shell blocks of a page that have no marker.
func shellBlocks(t *testing.T, path string) []string {
	t.Helper()
	var blocks []string
	for _, b := range page.Parse(path, string(read(t, "../../"+path))).Blocks {
		if b.Lang == "sh" && b.Marker == "" {
			blocks = append(blocks, b.Text)
		}
	}
	return blocks
}
