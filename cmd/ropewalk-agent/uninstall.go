// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/cluster/agent"
	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

// uninstallCheckTimeout bounds the check. The Job that runs it has two minutes.
const uninstallCheckTimeout = time.Minute

// maxListedNodes bounds the names in the message.
const maxListedNodes = 10

func newUninstallCheckCmd() *cobra.Command {
	var server apiOptions
	cmd := &cobra.Command{
		Use:   "uninstall-check",
		Short: "Fail while nodes of the cluster have an agent",
		Long: "uninstall-check fails while nodes announce an agent. Deleting the agents then would leave spread's programs\n" +
			"on the nodes, and mesh's routes, which drop traffic. It lists nodes that are not Ready, and ignores them: no cleanup can run there.\n" +
			"The Helm charts run it before `helm uninstall`.",
		Args: usageArgs(cobra.NoArgs), SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return checkUninstall(cmd.Context(), cmd.OutOrStdout(), server)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	server.add(cmd.Flags(), "the one of the pod's cluster")
	return cmd
}

func checkUninstall(ctx context.Context, out io.Writer, server apiOptions) error {
	cfg, err := server.config()
	if err != nil {
		return fmt.Errorf("configuring access to the API server: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, uninstallCheckTimeout)
	defer cancel()
	nodes, away, err := agent.NodesWithAgent(ctx, cfg)
	switch {
	case errors.Is(err, agent.ErrNoDefinition):
	case err != nil:
		return err
	case len(nodes) > 0:
		return fmt.Errorf("%d nodes still have an agent (%s). Clean them up first: helm upgrade --reuse-values --set cleanup.enabled=true, and wait for the rollout. "+
			"In mode mesh, first set mesh.cleartext=Always and wait until all nodes have it. To uninstall without cleanup: helm uninstall --no-hooks", len(nodes), term.Some(nodes, maxListedNodes))
	}
	if len(away) > 0 {
		fmt.Fprintf(out, "%d nodes that are not Ready keep what the agent left (%s). If one comes back, run there: ropewalk-agent cleanup\n", len(away), term.Some(away, maxListedNodes))
	}
	fmt.Fprintln(out, "no node that is Ready has an agent")
	return nil
}
