// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/cluster/agent"
)

func newStartupCheckCmd() *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:   "startup-check --socket PATH",
		Short: "Fail until the agent in this pod answers its own probes",
		Long: "startup-check asks the agent that serves the socket (--startup-socket). In a rolling update of mesh mode two agents run on a node, and\n" +
			"the old one answers the probes of both. startup-check fails until the new one has taken the tunnel over, or waits for the old\n" +
			"one to be stopped because it cannot. The Helm chart runs it as the startup probe.",
		Args: usageArgs(cobra.NoArgs), SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if socket == "" {
				return usageError{errors.New("the agent's socket is missing: set --socket")}
			}
			return agent.CheckStartup(cmd.Context(), socket)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	cmd.Flags().StringVar(&socket, "socket", "", "the agent's --startup-socket")
	return cmd
}
