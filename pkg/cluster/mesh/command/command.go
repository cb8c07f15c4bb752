// SPDX-License-Identifier: Apache-2.0

// Package command is the command line of `ropewalk mesh`. Two programs use it. ropewalk-agent has the API client and runs the
// commands. ropewalk parses the line and starts ropewalk-agent with it. So both have the same help, completion and errors. Begin reading at New.
//
// Not for other programs: it may change without notice.
package command

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh/view"
)

// Verb is a subcommand.
type Verb string

// The verbs.
const (
	Status Verb = "status"
	Check  Verb = "check"
)

// Options are the flags and arguments of all verbs.
type Options struct {
	Kubeconfig, Context, Server string
	Timeout                     time.Duration
	JSON                        bool
	Problems, Strict            bool
	Nodes                       []string // patterns for path.Match; none: all
}

// Run runs a verb with valid options.
type Run func(cmd *cobra.Command, verb Verb, o Options) error

// UsageError is a mistake in the command line.
type UsageError struct{ error }

// ExitCode returns the program's exit code.
func (UsageError) ExitCode() int { return 2 }

func (e UsageError) Unwrap() error { return e.error }

// VerdictError ends a check with problems. The output has them already.
type VerdictError struct{ Code int }

// Error returns "", so that nothing more is printed.
func (VerdictError) Error() string { return "" }

// ExitCode returns the program's exit code.
func (e VerdictError) ExitCode() int { return e.Code }

// Verdict returns nil if there are no problems. With strict, warnings count as failures.
func Verdict(s view.Summary, strict bool) error {
	switch {
	case s.Failed > 0, s.Warnings > 0 && strict:
		return VerdictError{3}
	case s.Warnings > 0:
		return VerdictError{4}
	}
	return nil
}

// New returns the command mesh.
func New(run Run) *cobra.Command {
	mesh := &cobra.Command{
		Use:   "mesh",
		Short: "Show and check the mesh of a Kubernetes cluster",
		Long: "mesh reads the Nodes, RopewalkNodes, RopewalkAnnouncements and RopewalkPeers of a cluster, as kubectl does, and shows\n" +
			"nodes and problems. It contacts no node and changes nothing.\n" +
			"It needs the right to list the first three kinds. Docs: docs/mesh.md.",
		Example: "  ropewalk mesh status\n  ropewalk mesh check --context production",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return UsageError{fmt.Errorf("unknown command %q: want one of check, status", args[0])}
			}
			return cmd.Help()
		},
		Args: cobra.ArbitraryArgs,
	}
	mesh.AddCommand(newStatus(run), newCheck(run))
	return mesh
}

func newStatus(run Run) *cobra.Command {
	var o Options
	cmd := &cobra.Command{
		Use:   "status [NODE...]",
		Short: "List nodes with their keys, MTU, peers and problems",
		Long: "status lists the nodes with the status of their agents: mode, key, endpoint, pods, MTU, actual and expected peers,\n" +
			"nodes that they spread towards, and peers with stale handshakes. The findings of `mesh check` follow. With node names or\n" +
			"patterns (node-*) as arguments, it lists those nodes.",
		Example: "  ropewalk mesh status\n  ropewalk mesh status node-1 'gpu-*'\n  ropewalk mesh status --problems\n  ropewalk mesh status --json",
	}
	f := o.flags(cmd, Status, run)
	f.BoolVar(&o.JSON, "json", false, "print JSON (apiVersion "+view.APIVersion+", kind "+string(view.StatusDocument)+")")
	f.BoolVar(&o.Problems, "problems", false, "leave out nodes without findings")
	return cmd
}

func newCheck(run Run) *cobra.Command {
	var o Options
	cmd := &cobra.Command{
		Use:   "check [NODE...]",
		Short: "Find problems of the mesh",
		Long: "check finds nodes without an agent or a key, keys and pods that two nodes claim, missing peers, stale\n" +
			"handshakes, different MTUs and modes, nodes that do not gather, and errors and warnings of agents.\n" +
			"Exit code: 0 no problems, 3 a check failed, 4 there are warnings, 1 an error, 2 wrong usage.",
		Example: "  ropewalk mesh check\n  ropewalk mesh check --json | jq '.findings[]'\n  ropewalk mesh check --strict node-1",
	}
	f := o.flags(cmd, Check, run)
	f.BoolVar(&o.JSON, "json", false, "print JSON (apiVersion "+view.APIVersion+", kind "+string(view.CheckDocument)+")")
	f.BoolVar(&o.Strict, "strict", false, "exit with 3 for warnings as well")
	return cmd
}

// flags adds the flags that all verbs have.
func (o *Options) flags(cmd *cobra.Command, verb Verb, run Run) *pflag.FlagSet {
	f := cmd.Flags()
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig to use (default: KUBECONFIG, ~/.kube/config, or the pod's own account)")
	f.StringVar(&o.Context, "context", "", "context of the kubeconfig (default: its current one)")
	f.StringVar(&o.Server, "server", "", "URL of the API server, instead of the kubeconfig's")
	f.DurationVar(&o.Timeout, "timeout", 30*time.Second, "how long to wait for the API server")
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.Nodes = args
		if err := o.Check(); err != nil {
			return UsageError{err}
		}
		return run(cmd, verb, *o)
	}
	return f
}

// Check validates the options.
func (o *Options) Check() error {
	for _, pattern := range o.Nodes {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("node pattern %q: %w", pattern, err)
		}
	}
	if o.Timeout <= 0 {
		return errors.New("--timeout: want a positive duration, such as 30s")
	}
	return nil
}

// NodeMatcher returns a function that reports whether a node matches the arguments, or nil without arguments.
func (o *Options) NodeMatcher() func(name string) bool {
	if len(o.Nodes) == 0 {
		return nil
	}
	return func(name string) bool {
		return slices.ContainsFunc(o.Nodes, func(pattern string) bool { return matches(pattern, name) })
	}
}

// Unmatched returns the arguments that match no node.
func (o *Options) Unmatched(nodes []view.Node) (patterns []string) {
	for _, pattern := range o.Nodes {
		if !slices.ContainsFunc(nodes, func(n view.Node) bool { return matches(pattern, n.Name) }) {
			patterns = append(patterns, pattern)
		}
	}
	return patterns
}

func matches(pattern, name string) bool {
	match, _ := path.Match(pattern, name) // Check has validated the pattern
	return match
}

// Line returns the arguments after "mesh" that make another program run the same command.
func Line(cmd *cobra.Command, verb Verb, o Options) []string {
	line := []string{string(verb)}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		line = append(line, "--"+f.Name+"="+f.Value.String())
	})
	return append(append(line, "--"), o.Nodes...)
}
