// SPDX-License-Identifier: Apache-2.0

package package_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// maxExposure returns the limit of each unit's exposure level as `systemd-analyze security` computes it, in tenths.
func maxExposure() map[string]string {
	return map[string]string{"ropewalk@.service": "40", "ropewalk-spread@.service": "40", "ropewalk-engine@.service": "40"}
}

func TestUnitsAreConfined(t *testing.T) {
	needTool(t, "systemd-analyze")
	for unit, limit := range maxExposure() {
		out := output(t, "systemd-analyze", "security", "--offline=true", "--threshold="+limit, "../../deploy/systemd/"+unit)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		t.Log(lines[len(lines)-1])
	}
}

func TestUnitsPassSystemdVerify(t *testing.T) {
	needTool(t, "systemd-analyze")
	dir := t.TempDir()
	for unit := range maxExposure() {
		text := string(read(t, filepath.Join("../../deploy/systemd", unit)))
		text = strings.ReplaceAll(text, "/usr/bin/ropewalk", "/bin/true") // exists on the build machine
		text = strings.ReplaceAll(text, "man:ropewalk(8)", "man:true(1)")
		instance := filepath.Join(dir, strings.Replace(unit, "@", "@wg0", 1))
		if err := os.WriteFile(instance, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if out := output(t, "systemd-analyze", "verify", "--man=no", "--recursive-errors=no", instance); out != "" {
			t.Errorf("%s: got %s, want %q", unit, out, "")
		}
	}
}
