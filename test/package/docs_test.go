// SPDX-License-Identifier: Apache-2.0

package package_test

import (
	"strings"
	"testing"
)

// TestInstallationGuideWorks runs the commands of docs/install.md as a service of a systemd of its own.
func TestInstallationGuideWorks(t *testing.T) {
	commands := shellBlocks(string(read(t, "../../docs/install.md")))
	if len(commands) < 10 {
		t.Fatalf("%d blocks of commands", len(commands))
	}
	script := "set -euo pipefail\ntrap 'echo \"FAILED: $BASH_COMMAND\"; journalctl --no-pager -n 50' ERR\n" +
		"exec 2>&1\nset -x\nip link set lo up\ncd /opt/test\n" + strings.Join(commands, "\n") + "\nset +x\necho done\n"
	out := underSystemd(t, script)
	if !strings.HasSuffix(out, "\ndone\n") {
		t.Fatal(out)
	}
	t.Log(out)
}

// shellBlocks returns the commands that a text says can be run.
func shellBlocks(text string) []string {
	var blocks []string
	for i, part := range strings.Split(text, "\n```") {
		if body, ok := strings.CutPrefix(part, "sh\n"); ok && i%2 == 1 {
			blocks = append(blocks, body)
		}
	}
	return blocks
}
