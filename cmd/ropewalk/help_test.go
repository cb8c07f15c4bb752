// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/test/docs/page"
	"github.com/ropewalk/ropewalk/test/golden"
)

// walk calls f with cmd and all visible commands below it.
func walk(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			walk(c, f)
		}
	}
}

func TestHelpMatchesGoldenFiles(t *testing.T) {
	walk(newRootCmd(), func(cmd *cobra.Command) {
		words := strings.Fields(cmd.CommandPath())
		var texts [2]string
		for i, args := range [][]string{append([]string{"help"}, words[1:]...), append(words[1:len(words):len(words)], "--help")} {
			out, errs, err := execute(t, newRootCmd(), "", args...)
			if err != nil || errs != "" {
				t.Errorf("%q: got %q, error %v, want %q, no error", args, errs, err, "")
			}
			texts[i] = out
		}
		golden.Check(t, filepath.Join("testdata", "help", strings.Join(words, "-")+".golden"), texts[0])
		if diff := cmp.Diff(texts[0], texts[1]); diff != "" {
			t.Errorf("%s: help and --help differ:\n%s", cmd.CommandPath(), diff)
		}
	})
}

func TestEveryCommandHasHelpAndExample(t *testing.T) {
	walk(newRootCmd(), func(cmd *cobra.Command) {
		if cmd.Long == "" || cmd.Short == "" || !strings.Contains(cmd.Example, "ropewalk") {
			t.Errorf("%s: short %q, long %q, example %q", cmd.CommandPath(), cmd.Short, cmd.Long, cmd.Example)
		}
		for line := range strings.Lines(cmd.Long + "\n" + cmd.Example) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 130 {
				t.Errorf("%s: a line of %d columns: %s", cmd.CommandPath(), n, line)
			}
		}
	})
}

func TestExamplesUseExistingCommandsAndFlags(t *testing.T) {
	walk(newRootCmd(), func(cmd *cobra.Command) {
		for _, args := range page.Calls(cmd.Example, "ropewalk") {
			if err := checkCall(args); err != nil {
				t.Errorf("%s: ropewalk %s: %v", cmd.CommandPath(), strings.Join(args, " "), err)
			}
		}
	})
}

func TestEveryArgumentIsCompleted(t *testing.T) {
	walk(newRootCmd(), func(cmd *cobra.Command) {
		takesArgs := strings.Contains(cmd.Use, " ")
		if takesArgs && cmd.ValidArgsFunction == nil && cmd.ValidArgs == nil {
			t.Errorf("%s: nothing completes the arguments of %q", cmd.CommandPath(), cmd.Use)
		}
	})
}

func TestSetCompletesTheValuesItAccepts(t *testing.T) {
	for _, tt := range []struct{ words, want string }{
		{"wg0 spread", "auto off on"},
		{"wg0 post-quantum", "auto off required"},
		{"wg0 peer KEY post-quantum", "auto off required default forget"},
		{"wg0 peer KEY spread", ""}, // must precede the first peer
		{"wg0 peer KEY underlay", ""},
	} {
		if got, _ := completeSet(nil, strings.Fields(tt.words), ""); strings.Join(got, " ") != tt.want {
			t.Errorf("%s: got %q, want %q", tt.words, got, tt.want)
		}
	}
}
