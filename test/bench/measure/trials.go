// SPDX-License-Identifier: Apache-2.0

package measure

import "slices"

// Special are all measures that are taken only when asked for.
func Special() []Measure { return slices.Concat(Trials(), Paths()) }

// Trials are measures that are taken only when asked for. Each looks at one thing that happens to
// a tunnel. Its leftovers (a daemon that was killed, another host) would change later
// measurements.
func Trials() []Measure {
	const share = "% of what the flood leaves elsewhere"
	list := []Measure{
		{
			Name: "flood", Unit: share, Run: floodImpact(0),
			What: "TCP, 4 streams, under a flood of handshake initiations, beside the same flood at another host",
		},
		{
			Name: "flood500", Unit: share, Run: floodImpact(500e6),
			What: "TCP of 500 Mbit/s, 4 streams, under a flood of handshake initiations, beside the same flood at another host",
		},
	}
	for _, e := range events() {
		list = append(list, Measure{Name: e.name, Unit: "ms", What: e.what, Lower: true, Run: gap(e)})
	}
	return list
}
