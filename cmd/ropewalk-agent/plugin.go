// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ropewalk/ropewalk/pkg/cluster/bundle"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh/command"
)

// pluginName is kubectl's name for its plugin, which is this program under a second name. A
// program of its own with the API client would take as much disk again.
const pluginName = "kubectl-ropewalk"

// newCmd returns the command for the name by which the program was called.
func newCmd(argv0 string) *cobra.Command {
	if filepath.Base(argv0) == pluginName {
		return newPluginCmd()
	}
	return newAgentCmd()
}

func newPluginCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   pluginName,
		Short: "Show, check and report ropewalk's tunnels between the nodes of a cluster",
		Long: "A plugin of kubectl for clusters with ropewalk's agents. status and check read objects, as `ropewalk mesh` does.\n" +
			"flows and bundle run kubectl, which reaches the agents' pods. Docs: docs/mesh.md.",
		Example:     "  kubectl ropewalk status\n  kubectl ropewalk check --context production\n  kubectl ropewalk flows node-1\n  kubectl ropewalk bundle",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl ropewalk"},
		Version:     version, Args: usageArgs(cobra.NoArgs), SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	cmd.CompletionOptions.DisableDefaultCmd = true // kubectl does not use it
	for _, c := range newMeshCmd().Commands() {
		c.Example = strings.ReplaceAll(c.Example, "ropewalk mesh", "kubectl ropewalk")
		cmd.AddCommand(c)
	}
	cmd.AddCommand(newFlowsCmd(), newBundleCmd())
	return cmd
}

// kubectlOptions are the flags that select the cluster and the agents, for commands that run
// kubectl.
type kubectlOptions struct{ kubeconfig, context, server, namespace string }

func (o *kubectlOptions) add(f *pflag.FlagSet) {
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig to use (default: kubectl's)")
	f.StringVar(&o.context, "context", "", "context of the kubeconfig (default: its current one)")
	f.StringVar(&o.server, "server", "", "URL of the API server, instead of the kubeconfig's")
	f.StringVarP(&o.namespace, "namespace", "n", "", "namespace of the agents (default: all are searched)")
}

// command returns kubectl with the flags.
func (o *kubectlOptions) command() (c bundle.Command, err error) {
	if c.Program, err = exec.LookPath("kubectl"); err != nil {
		return c, fmt.Errorf("this command runs kubectl: %w", err)
	}
	for _, f := range [][2]string{{"--kubeconfig", o.kubeconfig}, {"--context", o.context}, {"--server", o.server}} {
		if f[1] != "" {
			c.Flags = append(c.Flags, f[0]+"="+f[1])
		}
	}
	return c, nil
}

func newFlowsCmd() *cobra.Command {
	var o kubectlOptions
	cmd := &cobra.Command{
		Use:   "flows NODE [-- ARGUMENT...]",
		Short: "Show the busiest flows in a node's tunnel",
		Long: "flows runs `ropewalk flows` in the pod of the node's engine, or of its agent if the host runs the engine. Arguments after --\n" +
			"go to `ropewalk flows`. It needs the right to list pods and to create pods/exec. Mode mesh only.",
		Example: "  kubectl ropewalk flows node-1\n  kubectl ropewalk flows node-1 -- --sort drops --watch",
		Args: usageArgs(func(cmd *cobra.Command, args []string) error {
			if n := cmd.ArgsLenAtDash(); len(args) == 0 || n == 0 || n != 1 && len(args) > 1 {
				return errors.New("want one node, and arguments of `ropewalk flows` after --")
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, args []string) error { return o.flows(cmd, args[0], args[1:]) },
	}
	o.add(cmd.Flags())
	return cmd
}

func (o *kubectlOptions) flows(cmd *cobra.Command, node string, args []string) error {
	kubectl, err := o.command()
	if err != nil {
		return err
	}
	to, err := bundle.ExecArgs(cmd.Context(), kubectl, o.namespace, node)
	if err != nil {
		return err
	}
	run := exec.CommandContext(cmd.Context(), kubectl.Program, slices.Concat(kubectl.Flags, to, []string{"ropewalk", "flows"}, args)...)
	run.Stdout, run.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr() // with kubectl's own message about a failure
	err = run.Run()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok && cmd.Context().Err() == nil {
		return command.VerdictError{Code: failed.ExitCode()}
	}
	return err
}
