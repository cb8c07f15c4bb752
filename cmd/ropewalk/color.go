// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"

	"github.com/ropewalk/ropewalk/pkg/control/show"
)

// colored reports whether output to out has colours: on a terminal, unless NO_COLOR or WG_COLOR_MODE overrides that.
func colored(out io.Writer) bool { return colorMode(isTerminal(out)) }

// colorMode is colored for an output that is already known to be a terminal or not.
func colorMode(terminal bool) bool {
	return show.UseColor(os.Getenv("WG_COLOR_MODE"), os.Getenv("NO_COLOR") != "", terminal)
}
