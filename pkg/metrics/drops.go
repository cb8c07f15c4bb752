// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"

	"github.com/ropewalk/ropewalk/pkg/drop"
)

// drops shows each reason of the closed list, those that never happened too: a rate needs the zero before the first one.
func (s *scrape) drops() {
	for r := drop.None + 1; r < drop.Count; r++ {
		name := r.String()
		n := s.Stats.Drops[name] + s.Stats.Slow.Drops[name]
		for i := range s.Stats.Lanes {
			n += s.Stats.Lanes[i].Drops[name]
		}
		s.count(dropped, n, stage(name), name)
	}
}

// stage is where packets were on their way, which the name of a reason begins with.
func stage(reason string) string {
	prefix, _, _ := strings.Cut(reason, "_")
	switch prefix {
	case "tx":
		return "transmit"
	case "rx":
		return "receive"
	case "hs":
		return "handshake"
	}
	return prefix
}
