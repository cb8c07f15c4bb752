// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// nearest returns the word that was probably meant, or "" when none is close: at most a third of its letters differ, or
// it begins so.
func nearest(word string, known []string) string {
	word = strings.ToLower(word)
	best, least := "", len(word)+1
	for _, k := range known {
		d := distance(word, k)
		if len(word) > 1 && strings.HasPrefix(k, word) {
			d = min(d, 1)
		}
		if d <= max(len(k)/3, 1) && d < least {
			best, least = k, d
		}
	}
	return best
}

// distance is how many letters have to be inserted, removed, replaced or swapped with their neighbours (Damerau and
// Levenshtein's, of strings in which no letter takes part twice).
func distance(a, b string) int {
	before, last := []int(nil), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}

// didYouMean is "; did you mean "show"?", or nothing.
func didYouMean(word string, known []string) string {
	if meant := nearest(word, known); meant != "" {
		return fmt.Sprintf("; did you mean %q?", meant)
	}
	return ""
}

// unknownWord is the usage error for a word that is none of those known.
func unknownWord(what, word string, known []string) error {
	if meant := didYouMean(word, known); meant != "" {
		return usageError{fmt.Errorf("unknown %s %q%s", what, word, meant)}
	}
	return usageError{fmt.Errorf("unknown %s %q: want one of %s", what, word, strings.Join(known, ", "))}
}

// flagError makes a usage error of pflag's, with the flag that was probably meant.
func flagError(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return usageError{err}
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, f.Name)
		}
	})
	if meant := nearest(unknown.GetSpecifiedName(), known); meant != "" {
		err = fmt.Errorf("%w; did you mean \"--%s\"?", err, meant)
	}
	return usageError{err}
}

// unknownCommand adds the command that was probably meant to cobra's error for one that is not known.
func unknownCommand(root *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	var word string
	if _, scanErr := fmt.Sscanf(err.Error(), "unknown command %q", &word); scanErr != nil {
		return err
	}
	if _, ok := errors.AsType[usageError](err); ok {
		return err
	}
	return unknownWord("command", word, subcommandNames(root))
}

// group makes a command that only has others under it: alone it prints its help, and a word that is none of them is a
// usage error.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return unknownWord("command", args[0], subcommandNames(cmd))
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return cmd
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
