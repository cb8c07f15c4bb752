// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/pkg/kube"
)

// cleanupOptions are the flags of cleanup.
type cleanupOptions struct {
	cfg      kube.CleanupConfig
	server   apiOptions
	stay     bool
	listen   string
	logLevel string
}

func newCleanupCmd() *cobra.Command {
	var o cleanupOptions
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Take away all that agents left on this node",
		Long: "cleanup tells the other nodes that this one has no agent any more, waits until they know, and then detaches spread's\n" +
			"programs, and deletes the tunnel and its routes. What is not there is no error. No agent may run on the node.\n" +
			"While the API does not answer, it tries for two minutes to tell them, and goes on then.\n\n" +
			"The routes that keep the mesh's traffic from leaving in the clear go as well: from then on it goes, unencrypted,\n" +
			"wherever the cluster's other routes lead.",
		Example: "  ropewalk-agent cleanup --node $NODE_NAME",
		Args:    usageArgs(cobra.NoArgs), SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return runCleanup(cmd.Context(), o) },
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	f := cmd.Flags()
	f.StringVar(&o.cfg.Node, "node", os.Getenv("NODE_NAME"), "the node's name (default: NODE_NAME)")
	o.server.add(f, "as a pod finds it; outside of a pod: none is told")
	f.StringVar(&o.cfg.BPF, "bpf-fs", "", "the BPF file system that programs are pinned in (default: /sys/fs/bpf)")
	f.StringVar(&o.cfg.Tunnel, "tunnel", kube.DefaultTunnel, "the tunnel's interface")
	f.StringVar(&o.cfg.KeyDir, "key-dir", kube.DefaultKeyDir, "directory of the node's key and of what administrators asked for")
	f.BoolVar(&o.cfg.RemoveKeys, "keys", false, "remove the node's keys, too")
	f.DurationVar(&o.cfg.Propagation, "learn", kube.DefaultPropagation, "time that other nodes are given to learn that this one has no agent any more")
	f.BoolVar(&o.stay, "stay", false, "stay when all is done, and say so on /readyz, so that a DaemonSet can tell")
	f.StringVar(&o.listen, "listen", "127.0.0.1:9567", "where /healthz and /readyz are served, with --stay; empty: nowhere")
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
		return fmt.Errorf("finding the API server: %w", err)
	}
	if o.cfg.API != nil {
		o.cfg.API.UserAgent = "ropewalk-agent/" + version
	}
	var stats kube.Stats
	if o.stay {
		if err := serve(ctx, o.listen, kube.Content{Stats: &stats, Version: version, Log: log}); err != nil {
			return err
		}
	}
	if err := kube.Cleanup(ctx, o.cfg); err != nil {
		return err
	}
	log.Info("nothing of an agent is left", "node", o.cfg.Node)
	if o.stay {
		stay(ctx, log, &stats)
	}
	return nil
}

// stay says that all is done until ctx ends.
func stay(ctx context.Context, log *slog.Logger, stats *kube.Stats) {
	stats.Ready.Store(true)
	log.Info("staying until told to end")
	<-ctx.Done()
}
