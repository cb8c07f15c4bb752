// SPDX-License-Identifier: Apache-2.0

// Package command is the command line of `ropewalk mesh`. Two programs use it. ropewalk-agent has the API client and runs the
// commands. ropewalk parses the line and starts ropewalk-agent with it. So both have the same help, completion and errors. Only
// cmd/ropewalk and pkg/cluster/agent import it. Begin reading at New.
package command

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
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
	Graph  Verb = "graph"
	Check  Verb = "check"
	Export Verb = "export"
)

// Options are the flags and arguments of all verbs.
type Options struct {
	Kubeconfig, Context, Server string
	Timeout                     time.Duration
	JSON                        bool
	Problems, Links, Strict     bool
	Format                      string
	Output                      string
	Nodes                       []string // patterns for path.Match; none: all

	// Of export:
	ClusterName, CheckContext string
	ExternalIPs, BehindNAT    bool
	Keepalive                 uint16 // in seconds; 0: none
	Gateway, Via              string
	PodCIDRs                  []string
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
		Long: "mesh reads the Nodes, RopewalkNodes and RopewalkPeers of a cluster, as kubectl does, and shows links between nodes and\n" +
			"problems. It contacts no node and changes nothing. It needs the right to list the first two kinds. Docs: docs/mesh.md.",
		Example: "  ropewalk mesh status\n  ropewalk mesh graph -o mesh.svg\n  ropewalk mesh check --context production\n" +
			"  ropewalk mesh export --cluster-name east | kubectl --context west apply -f -",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return UsageError{fmt.Errorf("unknown command %q: want one of check, export, graph, status", args[0])}
			}
			return cmd.Help()
		},
		Args: cobra.ArbitraryArgs,
	}
	mesh.AddCommand(newStatus(run), newGraph(run), newCheck(run), newExport(run))
	return mesh
}

func newStatus(run Run) *cobra.Command {
	var o Options
	cmd := &cobra.Command{
		Use:   "status [NODE...]",
		Short: "List nodes with their keys, MTU, peers and problems",
		Long: "status lists the nodes with the status of their agents: mode, key, endpoint, pods, MTU, actual and expected peers,\n" +
			"nodes that they spread towards, and peers with stale handshakes. The findings of `mesh check` follow. With node names or\n" +
			"patterns (node-*) as arguments, it lists those nodes, their links and the nodes at the other ends.",
		Example: "  ropewalk mesh status\n  ropewalk mesh status node-1 'gpu-*'\n  ropewalk mesh status --problems\n  ropewalk mesh status --json",
	}
	f := o.flags(cmd, Status, run)
	f.BoolVar(&o.JSON, "json", false, "print JSON (apiVersion "+view.APIVersion+", kind "+string(view.StatusDocument)+")")
	f.BoolVar(&o.Problems, "problems", false, "leave out nodes without findings")
	f.BoolVar(&o.Links, "links", false, "list the links of all nodes as well")
	return cmd
}

func newGraph(run Run) *cobra.Command {
	var o Options
	cmd := &cobra.Command{
		Use:   "graph [NODE...]",
		Short: "Draw the nodes and their links",
		Long: "graph draws nodes and links. A link is spread both ways, spread one way, a tunnel that is not known to spread, a stale\n" +
			"handshake, or no tunnel. A browser shows the SVG in its light or dark theme. With node names or patterns as arguments,\n" +
			"it draws those nodes, their links and the nodes at the other ends.",
		Example: "  ropewalk mesh graph -o mesh.svg\n  ropewalk mesh graph node-1 > mesh.svg\n  ropewalk mesh graph --format dot | dot -Tpng -o mesh.png",
	}
	f := o.flags(cmd, Graph, run)
	f.StringVar(&o.Format, "format", "", "svg, dot or json (default: by the extension of --output, or svg)")
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

// exportName is a DNS label that leaves room for the names of nodes.
var exportName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?$`)

func newExport(run Run) *cobra.Command {
	var o Options
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Print the nodes as RopewalkPeers for another cluster",
		Long: "export prints a manifest of RopewalkPeers, one for each node in mode mesh: public key, endpoint, and the prefixes of its pods as\n" +
			"allowed IPs. It contains no secrets. Apply it in the other cluster, and that cluster's manifest in this one: the pods of both\n" +
			"then reach each other through the tunnels between the nodes. Export again when nodes are added, removed, or get another key,\n" +
			"address or pod prefix. The label ropewalk.io/cluster lets kubectl apply --prune remove peers of nodes that are gone.\n" +
			"Pods of both clusters must have different prefixes. Nodes that are left out are listed on the standard error.",
		Example: "  ropewalk mesh export --context east --cluster-name east --check-context west | kubectl --context west apply -f -\n" +
			"  ropewalk mesh export --context west --cluster-name west --check-context east | kubectl --context east apply -f -",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return UsageError{fmt.Errorf("export has no arguments, got %q: all nodes are exported", args[0])}
			}
			return nil
		},
	}
	f := o.flags(cmd, Export, run)
	f.StringVar(&o.ClusterName, "cluster-name", "", "name of this cluster in the other one, such as east (required)")
	f.StringVar(&o.CheckContext, "check-context", "", "context of the other cluster: refuse what its agents would refuse")
	f.BoolVar(&o.ExternalIPs, "external-ip", false, "endpoints with the nodes' ExternalIPs, at the ports of their tunnels")
	f.BoolVar(&o.BehindNAT, "behind-nat", false, "without endpoints, for nodes behind a NAT: they begin, so the other cluster's export needs --persistent-keepalive")
	f.Uint16Var(&o.Keepalive, "persistent-keepalive", 0, "interval of the other cluster's keepalive messages in `SECONDS`, if its nodes are behind a NAT")
	f.StringVar(&o.Gateway, "gateway", "", "export this node only, with the pods of all: it forwards for the others (the other cluster's export needs --via with it)")
	f.StringSliceVar(&o.PodCIDRs, "pod-cidr", nil, "with --gateway: prefix of this cluster's pods, in place of those of its nodes (repeatable)")
	f.StringVar(&o.Via, "via", "", "node of the other cluster that forwards for its other nodes, as that cluster's export has it in --gateway")
	return cmd
}

// checkExport validates the options of export.
func (o *Options) checkExport() error {
	switch {
	case !exportName.MatchString(o.ClusterName):
		return fmt.Errorf("--cluster-name %q: want a name of 1 to 30 lower-case letters, digits and dashes, such as east", o.ClusterName)
	case o.ExternalIPs && o.BehindNAT:
		return errors.New("--external-ip and --behind-nat exclude each other: without an endpoint there is no address")
	case len(o.PodCIDRs) > 0 && o.Gateway == "":
		return errors.New("--pod-cidr needs --gateway: each node has its own pods otherwise")
	}
	for _, text := range o.PodCIDRs {
		if _, err := netip.ParsePrefix(text); err != nil {
			return fmt.Errorf("--pod-cidr: %w", err)
		}
	}
	return nil
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
		err := o.check()
		if verb == Export {
			err = cmp.Or(err, o.checkExport())
		}
		if err != nil {
			return UsageError{err}
		}
		return run(cmd, verb, *o)
	}
	return f
}

func formats() []string { return []string{"svg", "dot", "json"} }

// check validates the options and sets the default format.
func (o *Options) check() error {
	for _, pattern := range o.Nodes {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("node pattern %q: %w", pattern, err)
		}
	}
	if o.Timeout <= 0 {
		return errors.New("--timeout: want a positive duration, such as 30s")
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
	match, _ := path.Match(pattern, name) // check has validated the pattern
	return match
}

// Line returns the arguments after "mesh" that make another program run the same command.
func Line(cmd *cobra.Command, verb Verb, o Options) []string {
	line := []string{string(verb)}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		value := f.Value.String()
		if list, ok := f.Value.(pflag.SliceValue); ok { // String has brackets
			value = strings.Join(list.GetSlice(), ",")
		}
		line = append(line, "--"+f.Name+"="+value)
	})
	return append(append(line, "--"), o.Nodes...)
}
