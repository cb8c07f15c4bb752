// SPDX-License-Identifier: Apache-2.0

package show

import (
	"bufio"
	"io"
	"time"
)

// Options control the output.
type Options struct {
	Color bool // ANSI colours, in the pretty form only; see UseColor
	// Lanes prints the lanes of the device, and the source ports over which each peer's flows are
	// spread. They follow wg(8)'s fields, in the pretty form and JSON.
	Lanes bool
	Stats map[string]*Stats // for Lanes: the daemon's counters by device name; may lack devices
	// NetNS has the network namespaces of interfaces that are not in the caller's, by device name: as text, such as a name of ip-netns(8).
	NetNS    map[string]string
	ShowKeys bool      // private and preshared keys in the pretty form, in place of "(hidden)", and in JSON
	Now      time.Time // the present time, for "ago"
	// ZoneName names the interface of a link-local endpoint's zone. If it is nil or returns "", the index is printed.
	ZoneName func(index uint32) string
}

// UseColor reports whether to print colours, by the rules of wg(8). mode is the value of WG_COLOR_MODE: "always" or "never". With any
// other value, there are colours on a terminal, unless NO_COLOR is set (noColor, https://no-color.org).
func UseColor(mode string, noColor, terminal bool) bool {
	switch mode {
	case "always":
		return true
	case "never":
		return false
	}
	return terminal && !noColor
}

// Interfaces prints the names on one line, as `wg show interfaces` does. It prints nothing for no names.
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
