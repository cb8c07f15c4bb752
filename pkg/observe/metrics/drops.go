// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// drops emits every drop reason, including those with count 0: Prometheus's rate() needs the 0 before the first drop. Each drop is counted
// in one place: by the device, on its slow path, or by a lane.
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

// stage maps the prefix of a drop reason to the stage of processing. A prefix that is no abbreviation is the stage.
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
