// SPDX-License-Identifier: Apache-2.0

//go:build !docs

package main

import "github.com/spf13/cobra"

// buildTagCommands returns the commands that a build tag adds: see docs_man.go.
func buildTagCommands() []*cobra.Command { return nil }
