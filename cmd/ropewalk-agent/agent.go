// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/ropewalk/ropewalk/pkg/cluster/agent"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// options are the flags of the agent. Its config method turns them into an agent.Config.
type options struct {
	cfg      agent.Config
	mode     string
	ports    string
	server   apiOptions
	listen   string
	logLevel string
}

func newAgentCmd() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "ropewalk-agent --mode spread|mesh",
		Short: "The Kubernetes agent of ropewalk: one per node, as a DaemonSet",
		Long: "In spread mode, the agent spreads and gathers for the cluster's WireGuard (Cilium, Calico, flannel or k3s). It changes no\n" +
			"key, no route and nothing of the CNI, and spreads towards a node only after that node has reported that it gathers.\n" +
			"In mesh mode, it configures the tunnel between the nodes' pods, which an engine of its own runs (ropewalk run), as the RopewalkMesh says.\n\n" +
			"Tunnel and attached programs stay when the agent ends, so that an upgrade loses no packets.",
		Version: version, Args: usageArgs(cobra.NoArgs), SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return runAgent(cmd.Context(), o) },
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	f := cmd.Flags()
	f.StringVar(&o.mode, "mode", string(mesh.ModeSpread), "`spread|mesh`, for the life of the process")
	f.StringVar(&o.cfg.Node, "node", os.Getenv("NODE_NAME"), "the node's name (default: NODE_NAME)")
	o.server.add(f, "the one of the pod's cluster")
	f.Uint16Var(&o.cfg.Port, "port", 0, "spread mode: the listen port of the cluster's WireGuard (default: the port of the WireGuard found on the node)")
	f.StringVar(&o.ports, "spread-ports", spread.DefaultPorts.String(), "source ports to spread over")
	f.BoolVar(&o.cfg.AnySocket, "any-socket", false, "for tests: spread mode: the port may belong to a process, whose sockets stand in for the kernel's WireGuard")
	_ = f.MarkHidden("any-socket")
	f.BoolVar(&o.cfg.RestartStalledPeers, "restart-stalled-peers", false, "spread mode: remove and add again a peer from which the cluster's WireGuard receives only handshakes, at most once in ten minutes")
	f.StringVar(&o.cfg.BPF, "bpf-fs", "", "the BPF file system to pin in (default: /sys/fs/bpf)")
	f.DurationVar(&o.cfg.ResyncPeriod, "resync-period", agent.DefaultResyncPeriod, "interval of reconciles without an event")
	f.DurationVar(&o.cfg.Propagation, "learn", agent.DefaultPropagation, "time that a node's status needs to reach the other nodes; spreading, key rotation, cleartext and cleanup wait for it")
	f.StringVar(&o.listen, "listen", "127.0.0.1:9567", "address of /healthz, /readyz and /metrics; empty: not served")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	addMeshFlags(f, &o)
	cmd.AddCommand(newCleanupCmd(), newMeshCmd(), newUninstallCheckCmd())
	return cmd
}

// apiOptions are the flags that select an API server outside of a pod.
type apiOptions struct{ url, token, ca, name string }

// add adds the flags. defaultServer describes the server without them.
func (o *apiOptions) add(f *pflag.FlagSet, defaultServer string) {
	f.StringVar(&o.url, "server", "", "URL of the API server (default: "+defaultServer+")")
	f.StringVar(&o.token, "token-file", "", "file with the token, with --server")
	f.StringVar(&o.ca, "ca-file", "", "file with the API server's CA, with --server")
	f.StringVar(&o.name, "server-name", "", "name in the API server's certificate, with --server (default: the name in --server)")
}

func (o apiOptions) config() (*rest.Config, error) {
	if o.url == "" {
		return rest.InClusterConfig()
	}
	return &rest.Config{
		Host: o.url, BearerTokenFile: o.token, TLSClientConfig: rest.TLSClientConfig{CAFile: o.ca, ServerName: o.name},
	}, nil
}

func (o options) config(log *slog.Logger) (cfg agent.Config, err error) {
	cfg = o.cfg
	if cfg.Node == "" {
		return cfg, usageError{errors.New("the node's name is missing: set --node or NODE_NAME")}
	}
	if cfg.Ports, err = config.ParsePorts(o.ports); err != nil {
		return cfg, usageError{fmt.Errorf("--spread-ports: %w", err)}
	}
	if cfg.API, err = o.server.config(); err != nil {
		return cfg, fmt.Errorf("configuring access to the API server: %w", err)
	}
	cfg.API.UserAgent = "ropewalk-agent/" + version
	cfg.Mode, cfg.Log, cfg.Version = mesh.Mode(o.mode), log, version
	return cfg, nil
}

func runAgent(ctx context.Context, o options) error {
	log, err := newLogger(o.logLevel)
	if err != nil {
		return err
	}
	klog.SetSlogLogger(log)
	if err := tuneCollector(); err != nil {
		return err
	}
	cfg, err := o.config(log)
	if err != nil {
		return err
	}
	a, err := agent.New(cfg)
	if err != nil {
		return err
	}
	if err := agent.Serve(ctx, o.listen, a.Stats(), version, log); err != nil {
		return err
	}
	log.Info("agent started", "node", cfg.Node, "mode", o.mode, "version", version, "memory_limit", heapLimit())
	return a.Run(ctx)
}
