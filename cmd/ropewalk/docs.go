// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/manpage"
)

// newDocsCmd is for packages; users have no use for it.
func newDocsCmd() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:     "docs",
		Short:   "Write documentation that is generated from the commands",
		Long:    "docs writes documentation that is generated from the commands themselves, for packages.",
		Example: "  ropewalk docs man /usr/share/man/man8",
		Hidden:  true,
	})
	cmd.AddCommand(&cobra.Command{
		Use:     "man DIRECTORY",
		Short:   "Write a manual page for each command",
		Long:    "man writes a page for ropewalk and one for each command, such as ropewalk-spread-attach.8, into the directory.",
		Example: "  ropewalk docs man /usr/share/man/man8",
		Args:    usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) error { return writeManual(cmd.Root(), args[0]) },
	}, newDocsConfigurationCmd())
	return cmd
}

// writeManual writes the page of a command and those of what is under it.
func writeManual(cmd *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("creating the directory for manual pages: %w", err)
	}
	for _, page := range manpage.Pages(cmd, version) {
		if err := os.WriteFile(filepath.Join(dir, page.Name), page.Text, 0o644); err != nil {
			return fmt.Errorf("writing a manual page: %w", err)
		}
	}
	return nil
}
