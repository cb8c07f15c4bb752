// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/cluster/agent"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh/command"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh/view"
)

// writeExport writes the manifest of a cluster's nodes for another cluster, or nothing if that one could not use it.
func writeExport(cmd *cobra.Command, o command.Options) error {
	c, err := loadCluster(cmd.Context(), o)
	if err != nil {
		return err
	}
	var other *view.Cluster
	if o.CheckContext != "" {
		there := o
		there.Context, there.Server = o.CheckContext, ""
		found, err := loadCluster(cmd.Context(), there)
		if err != nil {
			return fmt.Errorf("reading the cluster of --check-context: %w", err)
		}
		other = &found
	}
	pods, err := parsePrefixes("pod-cidr", o.PodCIDRs)
	if err != nil {
		return err
	}
	peers, skipped, err := agent.Export(c, other, agent.ExportOptions{
		Cluster: o.ClusterName, ExternalIPs: o.ExternalIPs, BehindNAT: o.BehindNAT, Keepalive: o.Keepalive, Gateway: o.Gateway, Pods: pods, Via: o.Via,
	})
	for _, s := range skipped {
		fmt.Fprintf(cmd.ErrOrStderr(), "node %s is left out: %s\n", s.Node, s.Reason)
	}
	if err != nil {
		return fmt.Errorf("exporting the nodes: %w", err)
	}
	text, err := agent.PeerManifest(o.ClusterName, peers)
	if err == nil {
		_, err = cmd.OutOrStdout().Write(text)
	}
	return err
}
