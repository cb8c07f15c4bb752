// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// nameComments finds the names of peers in comments, as other tools write them: above the [Peer] or in it. A comment that follows a
// setting without an empty line between, and precedes one, belongs to the peer before. WireGuard has no names.
type nameComments struct {
	name           string // of the last comment, until it is clear whose it is; empty for none
	before, behind bool   // there was an empty line before the comment, and behind it
	blank          bool   // the last line was empty
	disabled       bool   // within a section that is a comment as a whole
}

// nameComment matches "# Name = laptop", and "friendly_name" of prometheus_wireguard_exporter.
var nameComment = regexp.MustCompile(`(?i)^\s*#+\s*(?:friendly_?)?name\s*=\s*(.*?)\s*$`)

// parseComment looks at a whole line.
func (p *parser) parseComment(line string) {
	n := &p.names
	match := nameComment.FindStringSubmatch(line)
	text := strings.TrimSpace(line)
	commented := strings.HasPrefix(text, "#")
	n.disabled = commented && (n.disabled || strings.HasPrefix(strings.TrimLeft(text, "# \t"), "["))
	switch {
	case n.disabled:
	case match != nil && config.CheckName(match[1]) != nil:
		p.file.Warnings = append(p.file.Warnings, fmt.Sprintf("Warning: line %d: ignoring the name %.40q: want printable characters, at most %d bytes", p.number, match[1], config.MaxNameLen))
	case match != nil:
		*n = nameComments{name: match[1], before: n.blank}
	case text == "":
		n.behind = true
	}
	n.blank = text == ""
}

// above returns the name of a [Peer] that begins, from the comment above it, if there is one. Otherwise that is of the peer before.
func (n *nameComments) above(p *parser) string {
	if n.behind && !n.before && p.section != noSection {
		n.end(p)
	}
	name := n.name
	n.name = ""
	return name
}

// end gives the name to the peer of the present section, if there is one.
func (n *nameComments) end(p *parser) {
	if n.name != "" && p.section == peerSection {
		p.peer().Name = n.name
	}
	n.name = ""
}
