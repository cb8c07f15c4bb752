// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh/view"
)

// execute returns what a command line leads to, and the line that is handed over.
func execute(args ...string) (verb Verb, o Options, line []string, err error) {
	cmd := New(func(cmd *cobra.Command, v Verb, opts Options) error {
		verb, o, line = v, opts, Line(cmd, v, opts)
		return nil
	})
	cmd.SetArgs(args)
	cmd.SetOut(io.Discard)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err = cmd.Execute()
	return verb, o, line, err
}

func TestForwardedCommandLineParsesTheSame(t *testing.T) {
	for _, text := range []string{
		"status", "status --problems --json", "status -- -odd-name", "status n1 n2",
		"check --strict --timeout 5s --context=x --kubeconfig /a --server https://h node-*",
	} {
		verb, o, line, err := execute(strings.Fields(text)...)
		if err != nil {
			t.Fatalf("%s: got error %v, want none", text, err)
		}
		again, p, same, err := execute(line...)
		if err != nil || again != verb || !slices.Equal(line, same) || !cmp.Equal(o, p) {
			t.Errorf("%s: %v, %v: got %s", text, line, err, cmp.Diff(o, p))
		}
	}
	_, o, _, _ := execute("check", "--timeout", "5s", "node-*")
	if o.Timeout != 5*time.Second || !o.NodeMatcher()("node-1") || o.NodeMatcher()("gpu-1") {
		t.Errorf("got %+v", o)
	}
}

func TestUnmatchedArgumentsAreListed(t *testing.T) {
	nodes := []view.Node{{Node: mesh.Node{Name: "node-1"}}, {Node: mesh.Node{Name: "node-2"}}}
	for text, want := range map[string][]string{
		"status": nil, "status node-1": nil, "status node-*": nil, "status node-1 typo gpu-*": {"typo", "gpu-*"},
	} {
		_, o, _, err := execute(strings.Fields(text)...)
		if got := o.Unmatched(nodes); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %q, error %v, want %q", text, got, err, want)
		}
	}
}

func TestInvalidArgumentsAreUsageErrors(t *testing.T) {
	for _, text := range []string{
		"stauts", "status [", "check --timeout 0s", "check --timeout -1s",
	} {
		_, _, _, err := execute(strings.Fields(text)...)
		if e, ok := errors.AsType[UsageError](err); !ok || e.ExitCode() != 2 {
			t.Errorf("%s: got error %v", text, err)
		}
	}
}

func TestVerdictSetsExitCode(t *testing.T) {
	for _, c := range []struct {
		failed, warnings int
		strict           bool
		want             int
	}{{0, 0, true, 0}, {0, 1, false, 4}, {0, 1, true, 3}, {1, 1, false, 3}} {
		got := 0
		if err := Verdict(view.Summary{Failed: c.failed, Warnings: c.warnings}, c.strict); err != nil {
			coded, _ := errors.AsType[VerdictError](err)
			got = coded.ExitCode()
		}
		if got != c.want {
			t.Errorf("%+v: got %d, want %d", c, got, c.want)
		}
	}
}
