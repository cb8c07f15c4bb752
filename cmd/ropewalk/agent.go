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

// agentBinary is a program of its own.
const agentBinary = "ropewalk-agent"

func newAgentCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "agent",
		Short: "The Kubernetes agent (runs " + agentBinary + ", from beside this program or the PATH)",
		Long: "agent runs " + agentBinary + ", one per node of a Kubernetes cluster, with the same arguments. It is a program of its own, because\n" +
			"Kubernetes' client would make this one larger by a quarter. `" + agentBinary + " --help` lists its flags.",
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

// execAgent has the agent's program take this one's place. It returns only an error.
func execAgent(args ...string) error {
	path, err := findAgent()
	if err != nil {
		return err
	}
	err = syscall.Exec(path, append([]string{agentBinary}, args...), os.Environ())
	return fmt.Errorf("running %s: %w", path, err)
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
		return "", fmt.Errorf("the Kubernetes agent is a program of its own, %s, and is not installed", agentBinary)
	}
	return path, err
}
