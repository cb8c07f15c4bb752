// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// drops emits every drop reason, including those with count 0: rate() needs the 0 before the first drop.
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

// stage returns the stage of processing that the prefix of a drop reason names.
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
