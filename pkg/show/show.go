// SPDX-License-Identifier: Apache-2.0

// Package show prints device status exactly as wg(8) does (compared byte for byte with version 1.0.20210914). It reads
// neither the environment nor the clock: what depends on them is passed in.
package show

import (
	"bufio"
	"io"
	"time"
)

// Options say how to print.
type Options struct {
	Color    bool                      // ANSI colours, in the pretty form only; see ColorMode
	Lanes    bool                      // lines on lanes and spreading below wg(8)'s own, in the pretty form only
	Stats    map[string]*Stats         // by name of a device, for Lanes: what its daemon has counted, where it tells
	ShowKeys bool                      // private and preshared keys in the pretty form, in place of "(hidden)", and in JSON
	Now      time.Time                 // what "ago" is counted from
	ZoneName func(index uint32) string // name of an interface; nil or "" prints the index
}

// ColorMode decides on colours as wg(8) does. mode is the value of WG_COLOR_MODE: "always" or "never"; with anything else
// there are colours on a terminal, unless noColor says that NO_COLOR is set (https://no-color.org).
func ColorMode(mode string, noColor, terminal bool) bool {
	switch mode {
	case "always":
		return true
	case "never":
		return false
	}
	return terminal && !noColor
}

// Interfaces prints the names on one line, as `wg show interfaces` does, and nothing when there are none.
func Interfaces(w io.Writer, names []string) error {
	b := bufio.NewWriter(w)
	for i, name := range names {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(name)
	}
	if len(names) > 0 {
		b.WriteByte('\n')
	}
	return b.Flush()
}

const (
	none   = "(none)"
	hidden = "(hidden)"
	off    = "off"
)
