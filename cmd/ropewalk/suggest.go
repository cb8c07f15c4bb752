// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// suggestionDistance is the number of edits (Levenshtein) within which a known word is suggested for a misspelt one.
const suggestionDistance = 2

// didYouMean lists the known words that resemble word, in the form that cobra gives its own suggestions. It is empty if
// none does.
func didYouMean(word string, known []string) string {
	found := resembling(word, known)
	if len(found) == 0 {
		return ""
	}
	return "\n\nDid you mean this?\n\t" + strings.Join(found, "\n\t") + "\n"
}

// resembling returns the known words that resemble word.
func resembling(word string, known []string) []string {
	if word == "" { // a prefix of every word
		return nil
	}
	commands := &cobra.Command{SuggestionsMinimumDistance: suggestionDistance} // cobra searches commands only
	for _, name := range known {
		commands.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	return commands.SuggestionsFor(word)
}

// unknownWord returns the usage error for a word that is not in a list.
func unknownWord(kind, word string, known []string) error {
	if suggestions := didYouMean(word, known); suggestions != "" {
		return usageError{fmt.Errorf("unknown %s %q%s", kind, word, suggestions)}
	}
	return usageError{fmt.Errorf("unknown %s %q: want one of %s", kind, word, strings.Join(known, ", "))}
}

// flagError turns an error of pflag into a usage error. To one about an unknown flag it adds suggestions: pflag has none.
func flagError(cmd *cobra.Command, err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return usageError{invalidValue(invalid)}
	}
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return usageError{err}
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, "--"+f.Name)
		}
	})
	return usageError{fmt.Errorf("%w%s", err, didYouMean("--"+unknown.GetSpecifiedName(), known))}
}

// invalidValue replaces the texts of the packages strconv and time in an error about a flag's value.
func invalidValue(err *pflag.InvalidValueError) error {
	flag := err.GetFlag()
	want, ok := map[string]string{
		"bool": "true or false", "int": "a whole number", "int64": "a whole number", "intSlice": "whole numbers, separated by commas",
		"uint16": "0-65535", "uint": "a whole number from 0 on", "float64": "a number", "duration": "a duration such as 500ms or 10s",
	}[flag.Value.Type()]
	if !ok {
		return err
	}
	return fmt.Errorf("--%s: want %s, got %q", flag.Name, want, err.GetValue())
}

// group completes a command that only has subcommands. Without an argument it prints its help; an unknown subcommand is a
// usage error.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return unknownSubcommand(cmd, args[0])
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return cmd
}

// unknownSubcommand returns cobra's error for an unknown command. cobra itself checks only the subcommands of the root.
func unknownSubcommand(cmd *cobra.Command, word string) error {
	return usageError{fmt.Errorf("unknown command %q for %q%s", word, cmd.CommandPath(), didYouMean(word, subcommandNames(cmd)))}
}

func subcommandNames(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}
