// SPDX-License-Identifier: Apache-2.0

// Package postquantum has the known faults of post-quantum exchanges that `make postquantum-mutants` applies.
package postquantum

import (
	"os"
	"os/exec"
	"testing"
)

// TestMutantsApply finds faults that the sources have left behind: only `make postquantum-mutants` applies them.
func TestMutantsApply(t *testing.T) {
	for _, tool := range []string{"git", "perl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs " + tool)
		}
	}
	if exec.Command("git", "rev-parse").Run() != nil {
		t.Skip("the sources are not in a repository")
	}
	cmd := exec.Command("./mutants.sh")
	cmd.Env = append(os.Environ(), "APPLY=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}
