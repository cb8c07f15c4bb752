// SPDX-License-Identifier: Apache-2.0

// Package command is the command line of `ropewalk mesh`. Two programs have it: ropewalk-agent, which can speak to the API
// server, and ropewalk, which checks the line and hands it over. So both complete, explain and refuse the same.
package command

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ropewalk/ropewalk/pkg/mesh/view"
)

// Verb is what is wanted of the mesh.
type Verb string

// The verbs.
const (
	Status Verb = "status"
	Graph  Verb = "graph"
	Check  Verb = "check"
)

// Options are the flags.
type Options struct {
	Kubeconfig, Context, Server string
	Timeout                     time.Duration
	JSON                        bool
	Problems, Links, Strict     bool
	Format                      string
	Output                      string
	Nodes                       []string // patterns as of path.Match; none: all
}

// Run does it. The options are checked.
type Run func(cmd *cobra.Command, verb Verb, o Options) error

// UsageError marks a mistake in the command line.
type UsageError struct{ error }

// ExitCode is what the program ends with.
func (UsageError) ExitCode() int { return 2 }

func (e UsageError) Unwrap() error { return e.error }

// VerdictError ends a check that has said all already.
type VerdictError struct{ Code int }

// Error is "": there is nothing more to say.
func (VerdictError) Error() string { return "" }

// ExitCode is what the program ends with.
func (e VerdictError) ExitCode() int { return e.Code }

// Verdict is nil if all is well. Strict makes warnings failures.
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
		Long: "mesh reads the Nodes and RopewalkNodes of a cluster, as kubectl does, and shows who talks to whom and what is not as it\n" +
			"should be. It asks no node and changes nothing; it needs the right to list both kinds. Docs: docs/mesh.md.",
		Example: "  ropewalk mesh status\n  ropewalk mesh graph -o mesh.svg\n  ropewalk mesh check --context production",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return UsageError{fmt.Errorf("unknown command %q: want one of check, graph, status", args[0])}
			}
			return cmd.Help()
		},
		Args: cobra.ArbitraryArgs,
	}
	mesh.AddCommand(newStatus(run), newGraph(run), newCheck(run))
	return mesh
}

func newStatus(run Run) *cobra.Command {
	var o Options
	cmd := &cobra.Command{
		Use:   "status [NODE...]",
		Short: "List nodes with their keys, MTU and peers, and what is wrong",
		Long: "status lists nodes as their agents tell: mode, key, endpoint, pods, MTU, peers that they have of those that they should have,\n" +
			"nodes that they spread towards, peers with stale handshakes. Below is what `mesh check` finds. With names of nodes or\n" +
			"patterns (node-*), it lists those, their links and the nodes at the other ends.",
		Example: "  ropewalk mesh status\n  ropewalk mesh status node-1 'gpu-*'\n  ropewalk mesh status --problems\n  ropewalk mesh status --json",
	}
	f := o.flags(cmd, Status, run)
	f.BoolVar(&o.JSON, "json", false, "print JSON (apiVersion "+view.APIVersion+", kind "+string(view.StatusDocument)+")")
	f.BoolVar(&o.Problems, "problems", false, "leave out the nodes of which nothing is found")
	f.BoolVar(&o.Links, "links", false, "list links of all nodes, too")
	return cmd
}

func newGraph(run Run) *cobra.Command {
	var o Options
	cmd := &cobra.Command{
		Use:   "graph [NODE...]",
		Short: "Draw who talks to whom",
		Long: "graph draws nodes and links: spread both ways, spread one way, a tunnel that is not known to spread, a stale handshake, no\n" +
			"tunnel. SVG needs nothing but a browser, and is light or dark as that is. With names of nodes or patterns, it draws\n" +
			"those, their links and the nodes at the other ends.",
		Example: "  ropewalk mesh graph -o mesh.svg\n  ropewalk mesh graph node-1 > mesh.svg\n  ropewalk mesh graph --format dot | dot -Tpng -o mesh.png",
	}
	f := o.flags(cmd, Graph, run)
	f.StringVar(&o.Format, "format", "", "svg, dot or json (default: as the file's name ends, or svg)")
	f.StringVarP(&o.Output, "output", "o", "", "file to write instead of the standard output")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(formats(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("output", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return formats(), cobra.ShellCompDirectiveFilterFileExt
	})
	return cmd
}

func newCheck(run Run) *cobra.Command {
	var o Options
	cmd := &cobra.Command{
		Use:   "check [NODE...]",
		Short: "Say what of the mesh is not as it should be",
		Long: "check looks for nodes without an agent or a key, keys and pods that two nodes claim, peers that are missing, stale\n" +
			"handshakes, different MTUs and modes, nodes that do not gather, and what agents complain of.\n" +
			"Exit code: 0 all is well, 3 a check failed, 4 there are warnings, 1 an error, 2 wrong usage.",
		Example: "  ropewalk mesh check\n  ropewalk mesh check --json | jq '.findings[]'\n  ropewalk mesh check --strict node-1",
	}
	f := o.flags(cmd, Check, run)
	f.BoolVar(&o.JSON, "json", false, "print JSON (apiVersion "+view.APIVersion+", kind "+string(view.CheckDocument)+")")
	f.BoolVar(&o.Strict, "strict", false, "exit with 3 for warnings, too")
	return cmd
}

// flags adds what all have.
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
		if err := o.check(); err != nil {
			return UsageError{err}
		}
		return run(cmd, verb, *o)
	}
	return f
}

func formats() []string { return []string{"svg", "dot", "json"} }

// check refuses what makes no sense, and settles the format.
func (o *Options) check() error {
	for _, pattern := range o.Nodes {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("%q is no pattern of nodes: %w", pattern, err)
		}
	}
	if o.Timeout <= 0 {
		return errors.New("--timeout: want a time to wait, such as 30s")
	}
	if o.Format != "" && !slices.Contains(formats(), o.Format) {
		return fmt.Errorf("--format %q: want %s", o.Format, strings.Join(formats(), ", "))
	}
	if o.Format == "" {
		o.Format = strings.TrimPrefix(path.Ext(o.Output), ".")
		if !slices.Contains(formats(), o.Format) {
			o.Format = "svg"
		}
	}
	return nil
}

// NodeMatcher tells whether a node is one of those that are named, or nil where none is.
func (o *Options) NodeMatcher() func(name string) bool {
	if len(o.Nodes) == 0 {
		return nil
	}
	return func(name string) bool {
		return slices.ContainsFunc(o.Nodes, func(pattern string) bool {
			match, _ := path.Match(pattern, name) // it is a pattern: see check
			return match
		})
	}
}

// Line is the command line behind "mesh" that a command was given.
func Line(cmd *cobra.Command, verb Verb, o Options) []string {
	line := []string{string(verb)}
	cmd.Flags().Visit(func(f *pflag.Flag) { line = append(line, "--"+f.Name+"="+f.Value.String()) })
	return append(append(line, "--"), o.Nodes...)
}
