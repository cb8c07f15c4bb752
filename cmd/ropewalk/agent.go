// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
)

// agentBinary is the program of the Kubernetes agent.
const agentBinary = "ropewalk-agent"

func newAgentCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "agent",
		Short: "Run the Kubernetes agent (" + agentBinary + ")",
		Long: "agent runs " + agentBinary + " with the same arguments. The agent runs once on each node of a Kubernetes cluster. It is a separate\n" +
			"program, because the Kubernetes client would make this one a quarter larger. It is looked for in the directory of this\n" +
			"program, then in the PATH. `" + agentBinary + " --help` lists its flags.",
		Example:            "  ropewalk agent --mode spread --node $NODE_NAME",
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && (args[0] == "--help" || args[0] == "-h") {
				return cmd.Help()
			}
			return execAgent(args...)
		},
	}
}

// execAgent replaces this process by the agent's program. It returns only if that fails.
func execAgent(args ...string) error {
	path, err := findAgent()
	if err != nil {
		return err
	}
	err = syscall.Exec(path, append([]string{agentBinary}, args...), os.Environ())
	return fmt.Errorf("starting %s: %w", path, err)
}

func findAgent() (string, error) {
	if own, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(own), agentBinary)
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath(agentBinary)
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("the Kubernetes agent is a separate program, %s, and is not installed: install the package of that name", agentBinary)
	}
	return path, err
}
