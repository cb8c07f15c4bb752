// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/test/docs/page"
)

// TestCommandsInDocumentationExist parses every call of ropewalk in all pages, including those inside sentences. Only the changelog
// may mention commands that no longer exist.
func TestCommandsInDocumentationExist(t *testing.T) {
	pages, err := page.ReadAll(page.Root(2))
	if err != nil || len(pages) < 10 {
		t.Fatal(len(pages), err)
	}
	calls := 0
	for _, p := range pages {
		if p.Path == "CHANGELOG.md" {
			continue
		}
		check := func(line int, text string) {
			for _, args := range page.Calls(text, "ropewalk") {
				calls++
				if err := checkCall(args); err != nil {
					t.Errorf("%s:%d: ropewalk %s: %v", p.Path, line, strings.Join(args, " "), err)
				}
			}
		}
		for _, b := range p.Blocks {
			check(b.Line, b.Text)
		}
		for _, s := range p.Spans {
			check(s.Line, s.Text)
		}
	}
	if calls < 100 {
		t.Errorf("got %d commands in the documentation, want more", calls)
	}
}

// checkCall checks that the command exists and has the flags.
func checkCall(args []string) error {
	var words []string
	for _, arg := range args {
		if arg != "…" && arg != "..." && arg != "$@" { // stands for further arguments
			words = append(words, arg)
		}
	}
	words = wireguardGoArgs("ropewalk", words, isCommandOf(newRootCmd()), isLikeCommandOf(newRootCmd()), func(string) string { return "" })
	words = slices.DeleteFunc(words, func(w string) bool { return w == "--" }) // which ends the flags
	if len(words) == 0 || strings.HasPrefix(words[0], "-") && words[0] != "--help" {
		return checkFlags(newRootCmd(), words)
	}
	for _, name := range strings.Split(words[0], "|") {
		root := newRootCmd()
		root.InitDefaultHelpCmd()
		cmd, rest, err := root.Find(append([]string{name}, words[1:]...))
		if err != nil {
			return err
		}
		if cmd.Name() == "help" {
			return checkCall(rest)
		}
		if cmd.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
			return fmt.Errorf("no command %q", rest[0])
		}
		if err := checkFlags(cmd, rest); err != nil {
			return err
		}
	}
	return nil
}

func checkFlags(cmd *cobra.Command, args []string) error {
	if cmd.DisableFlagParsing {
		return nil
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	for _, arg := range args {
		arg = strings.Trim(arg, "[]")
		name, long := strings.CutPrefix(arg, "--")
		name, _, _ = strings.Cut(name, "=")
		switch {
		case long && cmd.Flags().Lookup(name) == nil && cmd.InheritedFlags().Lookup(name) == nil:
			return fmt.Errorf("no flag --%s", name)
		case !long && len(arg) == 2 && arg[0] == '-' && arg != "-0" && cmd.Flags().ShorthandLookup(arg[1:]) == nil:
			return fmt.Errorf("no flag %s", arg)
		}
	}
	return nil
}

func TestCheckCallFindsUnknownCommandsAndFlags(t *testing.T) {
	for line, want := range map[string]bool{
		"show wg0 --lanes": true, "help set": true, "run --spread auto|off|on wg0": true, "set|setconf|show": true, "up --metrics …": true, "--help": true, "": true, "$@": true,
		"run --lane 1 wg0": false, "shwo wg0": false, "spread atach eth0": false, "set|stconf": false, "doctor -z": false,
	} {
		if err := checkCall(strings.Fields(line)); (err == nil) != want {
			t.Errorf("%q: got error %v", line, err)
		}
	}
}
