// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/pkg/cluster/agent"
)

// cleanupOptions are the flags of cleanup.
type cleanupOptions struct {
	cfg      agent.CleanupConfig
	server   apiOptions
	stay     bool
	listen   string
	logLevel string
}

func newCleanupCmd() *cobra.Command {
	var o cleanupOptions
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything that agents left on this node",
		Long: "cleanup publishes that this node has no agent any more and waits until the other nodes know. It then detaches the\n" +
			"programs and deletes the tunnel, its routes and files. Missing parts are no error. No agent may run on the node; with\n" +
			"--stay, cleanup waits until it is stopped. The engine serves the tunnel until the end.\n" +
			"If the API does not answer, cleanup retries for two minutes and then proceeds.\n\n" +
			"At the end it also removes the routes that keep the mesh's traffic from leaving in the clear, with --stay when it is\n" +
			"stopped. From then on, that traffic follows the cluster's other routes, unencrypted.",
		Example: "  ropewalk-agent cleanup --node $NODE_NAME",
		Args:    usageArgs(cobra.NoArgs), SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return runCleanup(cmd.Context(), o) },
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	f := cmd.Flags()
	f.StringVar(&o.cfg.Node, "node", os.Getenv("NODE_NAME"), "the node's name (default: NODE_NAME)")
	o.server.add(f, "in a pod, the cluster's; outside: none, and nothing is published")
	f.StringVar(&o.cfg.BPF, "bpf-fs", "", "the BPF file system that programs are pinned in (default: /sys/fs/bpf)")
	f.StringVar(&o.cfg.Tunnel, "tunnel", agent.DefaultTunnel, "the tunnel's interface")
	f.StringVar(&o.cfg.KeyDir, "key-dir", agent.DefaultKeyDir, "directory of the node's key and of the agent's saved state")
	f.StringVar(&o.cfg.EngineConfig, "engine-config", agent.DefaultEngineConfig, "the file with which the tunnel's engine starts")
	f.BoolVar(&o.cfg.RemoveKeys, "keys", false, "remove the node's keys as well")
	f.DurationVar(&o.cfg.Propagation, "learn", agent.DefaultPropagation, "time for the status without an agent to reach the other nodes, before anything is removed")
	f.BoolVar(&o.stay, "stay", false, "wait for the end of a running agent, keep running when done, and report ready on /readyz, for a DaemonSet")
	f.StringVar(&o.listen, "listen", "127.0.0.1:9567", "address of /healthz and /readyz, with --stay; empty: not served")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	return cmd
}

func runCleanup(ctx context.Context, o cleanupOptions) error {
	log, err := newLogger(o.logLevel)
	if err != nil {
		return err
	}
	o.cfg.Log, o.cfg.Version = log, version
	if o.cfg.API, err = o.server.config(); err != nil && !errors.Is(err, rest.ErrNotInCluster) {
		return fmt.Errorf("reading the pod's credentials for the API server: %w", err)
	}
	if o.cfg.API != nil {
		o.cfg.API.UserAgent = "ropewalk-agent/" + version
	}
	if o.stay {
		o.cfg.Stay = new(agent.Stats)
		if err := agent.Serve(ctx, o.listen, o.cfg.Stay, version, log); err != nil {
			return err
		}
	}
	return agent.Cleanup(ctx, o.cfg)
}
