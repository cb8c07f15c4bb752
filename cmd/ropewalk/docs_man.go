// SPDX-License-Identifier: Apache-2.0

//go:build docs

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// buildTagCommands returns the commands that only a program built with `-tags docs` has: the generator of the manual.
// cobra/doc brings a Markdown parser and YAML, which the released program must not link.
func buildTagCommands() []*cobra.Command {
	docs := group(&cobra.Command{
		Use:     "docs",
		Short:   "Write documentation that is generated from the commands",
		Long:    "docs writes documentation that is generated from the commands themselves, for packages.",
		Example: "  go run -tags docs ./cmd/ropewalk docs man /usr/local/share/man",
		Hidden:  true,
	})
	docs.AddCommand(&cobra.Command{
		Use:     "man DIRECTORY",
		Short:   "Write a manual page for each command",
		Long:    "man writes a page for ropewalk and one for each command, such as man8/ropewalk-spread-attach.8, and man5/ropewalk-conf.5 below the directory.",
		Example: "  go run -tags docs ./cmd/ropewalk docs man /usr/local/share/man",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE:    func(_ *cobra.Command, args []string) error { return writeManual(newRootCmd(), args[0]) },
	})
	return []*cobra.Command{docs}
}

// writeManual writes the manual page of root and of every command below it, and ropewalk-conf(5),
// into man8 and man5 below dir. Their date is SOURCE_DATE_EPOCH, if it is set: the same sources
// then give the same pages.
func writeManual(root *cobra.Command, dir string) error {
	commands, files := filepath.Join(dir, "man8"), filepath.Join(dir, "man5")
	if err := errors.Join(os.MkdirAll(commands, 0o755), os.MkdirAll(files, 0o755)); err != nil {
		return fmt.Errorf("creating the directories for manual pages: %w", err)
	}
	root.DisableAutoGenTag = true // it holds the day, and cobra's name
	useMarkdown(root)
	header := &doc.GenManHeader{Section: "8", Source: "ropewalk " + version, Manual: "System Administration"}
	if err := doc.GenManTree(root, header, commands); err != nil {
		return fmt.Errorf("writing manual pages: %w", err)
	}
	return writeConfManual(files)
}

// useMarkdown turns the help of a command and of the commands below it into Markdown, which
// cobra/doc expects. Indented lists become blocks that are printed as they are.
func useMarkdown(cmd *cobra.Command) {
	var b strings.Builder
	inList := false
	for line := range strings.Lines(cmd.Long) {
		list := strings.HasPrefix(line, "  ")
		if list != inList {
			b.WriteByte('\n')
		}
		if inList = list; list {
			b.WriteString("  ")
		}
		b.WriteString(line)
	}
	cmd.Long = b.String()
	for _, c := range cmd.Commands() {
		useMarkdown(c)
	}
}
