// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"
)

// shells returns the shells for which there is a completion script.
func shells() []string { return []string{"bash", "zsh", "fish"} }

func newCompletionCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash | zsh | fish",
		Short: "Print the completion script of a shell",
		Long: "completion prints a script that completes commands, flags, interfaces, peers and keywords. The packages of ropewalk\n" +
			"install it. To install it by hand, write it to:\n" +
			"  bash  /etc/bash_completion.d/ropewalk (needs bash-completion)\n" +
			"  zsh   a file _ropewalk in a directory of $fpath\n" +
			"  fish  ~/.config/fish/completions/ropewalk.fish",
		Example:   "  source <(ropewalk completion bash)\n  ropewalk completion fish > ~/.config/fish/completions/ropewalk.fish",
		Args:      usageArgs(cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs)),
		ValidArgs: shells(),
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			default: // fish: OnlyValidArgs admits nothing else
				return root.GenFishCompletion(out, true)
			}
		},
	}
}
