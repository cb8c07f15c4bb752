// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/ropewalk/ropewalk/test/golden"
)

// TestMeshPassesArgumentsToAgentProgram uses a script as the agent's program.
func TestMeshPassesArgumentsToAgentProgram(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/mesh", RequireExplicitExec: true, UpdateScripts: golden.Update(),
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

func TestMeshRejectsInvalidArguments(t *testing.T) {
	for text, want := range map[string]string{
		"mesh stauts":             "unknown command \"stauts\" for \"ropewalk mesh\"\n\nDid you mean this?\n\tstatus\n",
		"mesh status --porblems":  "unknown flag: --porblems\n\nDid you mean this?\n\t--problems\n",
		"mesh status [":           `node pattern "["`,
		"mesh check --timeout 0s": "--timeout: want a positive duration",
	} {
		_, _, err := execute(t, newRootCmd(), "", strings.Fields(text)...)
		if err == nil || exitCode(err) != exitUsage || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: got error %v, want an error", text, err)
		}
	}
}

func TestMeshNeedsAgentProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // nor is it in the directory of the test binary
	_, _, err := execute(t, newRootCmd(), "", "mesh", "status")
	if err == nil || exitCode(err) != exitError || !strings.Contains(err.Error(), agentBinary+", and is not installed") {
		t.Error(err)
	}
}
