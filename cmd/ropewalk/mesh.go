// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh/command"
)

// newMeshCmd parses the command line and runs the agent's program with it, which contains the Kubernetes client.
func newMeshCmd() *cobra.Command {
	return group(command.New(func(cmd *cobra.Command, verb command.Verb, o command.Options) error {
		return execAgent(append([]string{"mesh"}, command.Line(cmd, verb, o)...)...)
	}))
}
