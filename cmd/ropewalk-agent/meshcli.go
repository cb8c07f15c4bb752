// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/ropewalk/ropewalk/pkg/cluster/agent"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh/command"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh/view"
	"github.com/ropewalk/ropewalk/pkg/control/show"
)

// newMeshCmd returns the command `ropewalk mesh`.
func newMeshCmd() *cobra.Command {
	return command.New(func(cmd *cobra.Command, verb command.Verb, o command.Options) error {
		klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // errors are also returned
		m, err := loadMesh(cmd.Context(), o)
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		if verb == command.Status {
			return writeStatus(out, m, o)
		}
		if err := writeCheck(out, m, o); err != nil {
			return err
		}
		return command.Verdict(m.Summary(), o.Strict)
	})
}

// loadMesh reads a cluster and returns its mesh, or the part that the options select.
func loadMesh(ctx context.Context, o command.Options) (*view.Mesh, error) {
	cluster, err := loadCluster(ctx, o)
	if err != nil {
		return nil, err
	}
	m := view.Build(cluster)
	if wanted := o.NodeMatcher(); wanted != nil {
		if missing := o.Unmatched(m.Nodes); missing != nil {
			return nil, fmt.Errorf("no node of the cluster matches %s", strings.Join(missing, ", "))
		}
		m = m.Filter(wanted)
	}
	return &m, nil
}

// loadCluster reads a cluster's objects.
func loadCluster(ctx context.Context, o command.Options) (c view.Cluster, err error) {
	cfg, name, err := kubeconfig(o)
	if err != nil {
		return c, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	c, err = agent.Snapshot(ctx, cfg)
	if errors.Is(err, context.DeadlineExceeded) {
		return c, fmt.Errorf("the API server at %s did not answer within %s", cfg.Host, o.Timeout)
	}
	if err != nil {
		return c, fmt.Errorf("reading the objects of the cluster at %s: %w", cfg.Host, err)
	}
	c.Name = name
	return c, nil
}

// contextsCommand returns the command that lists the contexts of a kubeconfig, "" for kubectl's default.
func contextsCommand(file string) string {
	if file == "" {
		return "kubectl config get-contexts"
	}
	return "kubectl --kubeconfig " + file + " config get-contexts"
}

// kubeconfig finds the cluster as kubectl does. name is the kubeconfig's context.
func kubeconfig(o command.Options) (cfg *rest.Config, name string, err error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.Kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: o.Context}
	overrides.ClusterInfo.Server = o.Server
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	switch cfg, err = loader.ClientConfig(); {
	case clientcmd.IsEmptyConfig(err):
		return nil, "", errors.New("no kubeconfig found: use --kubeconfig or KUBECONFIG, or run where kubectl works")
	case errors.Is(err, os.ErrNotExist):
		return nil, "", fmt.Errorf("reading the kubeconfig: %w", err)
	case clientcmd.IsContextNotFound(err):
		return nil, "", fmt.Errorf("reading the kubeconfig: %w (%s lists the contexts)", err, contextsCommand(o.Kubeconfig))
	case err != nil:
		return nil, "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	cfg.UserAgent = "ropewalk-mesh/" + version
	cfg.QPS, cfg.Burst = 50, 50 // a list takes several pages
	name = o.Context
	if raw, err := loader.RawConfig(); err == nil && name == "" {
		name = raw.CurrentContext
	}
	return cfg, name, nil
}

func writeStatus(out io.Writer, m *view.Mesh, o command.Options) error {
	if o.JSON {
		return m.WriteJSON(out, view.StatusDocument)
	}
	return m.WriteText(out, view.Style{Color: useColor(out), Problems: o.Problems})
}

func writeCheck(out io.Writer, m *view.Mesh, o command.Options) error {
	if o.JSON {
		return m.WriteJSON(out, view.CheckDocument)
	}
	return m.WriteFindings(out, view.Style{Color: useColor(out)})
}

// useColor reports whether the output is coloured, by the same rules as ropewalk's other commands.
func useColor(out io.Writer) bool {
	f, ok := out.(*os.File)
	terminal := ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
	return show.UseColor(os.Getenv("WG_COLOR_MODE"), os.Getenv("NO_COLOR") != "", terminal)
}
