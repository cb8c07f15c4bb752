// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"

	"github.com/ropewalk/ropewalk/pkg/show"
)

// colored tells whether what is written to out may have colours: on a terminal, unless NO_COLOR or WG_COLOR_MODE says
// otherwise.
func colored(out io.Writer) bool { return colorMode(isTerminal(out)) }

// colorMode is colored for what is known to be a terminal, or none.
func colorMode(terminal bool) bool {
	return show.ColorMode(os.Getenv("WG_COLOR_MODE"), os.Getenv("NO_COLOR") != "", terminal)
}
