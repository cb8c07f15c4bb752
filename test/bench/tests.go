// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/test/bench/measure"
)

// valueFigure is the name of a test's main figure among a sample's Figures; the others have testbed.Sample's names.
const valueFigure = "value"

// row is one line of the table: one figure of one test.
type row struct {
	test, figure, unit string
	// less says that less is better, so that a ratio below 1 is ropewalk's.
	less bool
	// bare is for figures that may well be zero, of which a ratio says nothing.
	bare bool
}

// companions are the figures beside a test's main figure that have a line of their own, below it.
func companions() []row {
	const cores = "% of all cores: "
	list := []row{
		{test: "tcp4", figure: "cores_per_gbps", unit: "cores per Gbit/s", less: true},
		{test: "udpgso", figure: "loss_percent", unit: "% lost", less: true, bare: true},
		{test: "udpgso", figure: "sender_percent", unit: cores + "sender", bare: true},
		{test: "udpgso", figure: "tunnel_percent", unit: cores + "both daemons", bare: true},
		{test: "udpgso", figure: "receiver_percent", unit: cores + "receiver", bare: true},
		{test: "udp1400", figure: "loss_percent", unit: "% lost", less: true, bare: true},
		{test: "rtt_load", figure: "p99_ms", unit: "ms, 99 of 100 below", less: true},
	}
	for _, test := range []string{"flood", "flood500"} {
		list = append(list,
			row{test: test, figure: "alone_gbps", unit: "Gbit/s without a flood"},
			row{test: test, figure: "elsewhere_gbps", unit: "Gbit/s, flood at another host"},
			row{test: test, figure: "closed_gbps", unit: "Gbit/s, flood at a closed port"},
			row{test: test, figure: "tunnel_gbps", unit: "Gbit/s, flood at the tunnel"},
			row{test: test, figure: "elsewhere_flood_kpps", unit: "kpps of flood at another host", bare: true},
			row{test: test, figure: "tunnel_flood_kpps", unit: "kpps of flood at the tunnel", bare: true},
		)
	}
	list = append(list, pathCompanions()...)
	for _, test := range []string{"gap_kill", "gap_upgrade", "gap_switch"} {
		list = append(list,
			row{test: test, figure: "lost", unit: "pings lost", less: true, bare: true},
			row{test: test, figure: "late_ms", unit: "ms, the slowest answer", less: true},
		)
	}
	return list
}

// retransmitted is the unit of TCP's retransmitted share.
const retransmitted = "% retransmitted"

// congestionCompanions are the companions of the tests that measure several congestion controls.
func congestionCompanions() (list []row) {
	for _, test := range []string{"lan", "wan1", "wan20", "wan100"} {
		streams := []string{"1 stream", "4 streams", "16 streams"}
		if test != "lan" {
			streams = streams[:2]
		}
		for _, congestion := range []string{"CUBIC", "BBR"} {
			for _, n := range streams {
				figure, title := strings.ToLower(congestion)+strings.Fields(n)[0], congestion+", "+n
				if figure != "cubic1" { // the test's main figure
					list = append(list, row{test: test, figure: figure + "_gbps", unit: "Gbit/s, " + title})
				}
				list = append(list,
					row{test: test, figure: figure + "_retransmitted_percent", unit: retransmitted + ", " + title, less: true, bare: true},
					row{test: test, figure: figure + "_rtt_ms", unit: "ms, round trip, " + title, less: true})
			}
		}
	}
	return list
}

// pathCompanions are the companions of measure.Paths.
func pathCompanions() []row {
	list := congestionCompanions()
	for _, test := range []string{"queue64k", "queue4m"} {
		list = append(list,
			row{test: test, figure: "rtt_ms", unit: "ms, round trip", less: true},
			row{test: test, figure: "rtt_p99_ms", unit: "ms, 99 of 100 below", less: true},
			row{test: test, figure: "retransmitted_percent", unit: retransmitted, less: true, bare: true})
	}
	for _, test := range []string{"fwd1", "fwd4", "quic", "fwdquic"} {
		list = append(list, row{test: test, figure: "reverse_gbps", unit: "Gbit/s, from B to A"})
	}
	for _, test := range []string{"fwd1", "fwd4"} {
		list = append(list,
			row{test: test, figure: "retransmitted_percent", unit: retransmitted, less: true, bare: true},
			row{test: test, figure: "reverse_retransmitted_percent", unit: retransmitted + ", from B to A", less: true, bare: true},
			row{test: test, figure: "tun_drops", unit: "packets or trains dropped in front of the TUN", less: true, bare: true})
	}
	return append(list,
		row{test: "slowpeer", figure: "alone_gbps", unit: "Gbit/s, the slow peer idle"},
		row{test: "slowpeer", figure: "tcp_gbps", unit: "Gbit/s, the slow peer under TCP"},
		row{test: "slowpeer", figure: "tcp_slow_mbps", unit: "Mbit/s of TCP to the slow peer"},
		row{test: "rrul", figure: "p99_ms", unit: "ms, 99 of 100 below", less: true},
		row{test: "rrul", figure: "there_gbps", unit: "Gbit/s, from A to B"},
		row{test: "rrul", figure: "back_gbps", unit: "Gbit/s, from B to A"},
	)
}

// rows are the table's lines for the measures.
func rows(measures []measure.Measure) []row {
	var list []row
	for _, m := range measures {
		// An idle daemon may well not wake up at all, and a change may well leave no hole.
		bare := m.Name == "wakeups" || strings.HasPrefix(m.Name, "gap_")
		list = append(list, row{test: m.Name, figure: valueFigure, unit: m.Unit, less: m.Lower, bare: bare})
		for _, c := range companions() {
			if c.test == m.Name {
				list = append(list, c)
			}
		}
	}
	return list
}

// withDrops adds a line for each reason for which something was dropped, below its test's last one.
func withDrops(list []row, samples []sample) []row {
	var all []row
	for i, w := range list {
		all = append(all, w)
		if i+1 < len(list) && list[i+1].test == w.test {
			continue
		}
		for _, figure := range dropFigures(w.test, samples) {
			reason := strings.TrimPrefix(figure, measure.DropPrefix)
			all = append(all, row{test: w.test, figure: figure, unit: "% of the flood: " + reason, bare: true})
		}
	}
	return all
}

// dropFigures are the names of a test's figures that count drops, in order.
func dropFigures(test string, samples []sample) []string {
	found := make(map[string]bool)
	for _, s := range samples {
		for name := range s.Figures {
			if s.Test == test && strings.HasPrefix(name, measure.DropPrefix) {
				found[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// chooseMeasures picks by name, of both lists, and keeps the order, which matters: rss is a peak over what came before. No
// names mean the first list.
func chooseMeasures(standard, others []measure.Measure, names []string) ([]measure.Measure, error) {
	if len(names) == 0 {
		return standard, nil
	}
	var valid []string
	var chosen []measure.Measure
	for _, m := range slices.Concat(standard, others) {
		valid = append(valid, m.Name)
		if slices.Contains(names, m.Name) {
			chosen = append(chosen, m)
		}
	}
	return chosen, onlyValid("test", names, valid)
}

func measureNames(measures []measure.Measure) []string {
	var names []string
	for _, m := range measures {
		names = append(names, m.Name)
	}
	return names
}

// guessDuration is how long a test takes before any has been timed; ndrN takes several stretches of at most 2 s.
func guessDuration(test string, stretch time.Duration) time.Duration {
	switch {
	case strings.HasPrefix(test, "ndr"):
		return 12 * min(stretch, 2*time.Second)
	case strings.HasPrefix(test, "flood"):
		return 4 * (stretch + time.Second)
	case test == "lan":
		return 6*(2*stretch+testbed.LoadSpare) + time.Second
	case strings.HasPrefix(test, "wan"):
		return 4*(2*stretch+testbed.LoadSpare) + time.Second
	case test == "slowpeer":
		return 3*(2*stretch+testbed.LoadSpare) + 2*time.Second
	case strings.HasPrefix(test, "fwd"), strings.HasPrefix(test, "queue"), test == "quic", test == "rrul":
		return 2*stretch + 2*time.Second
	case strings.HasPrefix(test, "gap_"):
		return 4*stretch + 3*time.Second
	}
	return stretch + time.Second
}
