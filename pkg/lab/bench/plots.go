// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

// Plot is one picture of a report.
type Plot struct {
	Name string // file name without its extension
	SVG  []byte
}

// Plots draws what the report has figures for.
func Plots(r *Report) []Plot {
	var plots []Plot
	add := func(name string, c *chart) {
		if c.empty() {
			return
		}
		c.note += fmt.Sprintf(" %s, %s.", orUnknown(r.Machine.CPU), term.Count(r.Machine.Cores, "core"))
		c.command = r.Command
		plots = append(plots, Plot{name, c.svg()})
	}
	for _, f := range fixedCharts() {
		add(f.name, f.chart(r))
	}
	add("throughput", r.throughputChart())
	add("latency", r.latencyChart())
	add("limit", r.limitChart())
	return plots
}

// fixedChart shows figures of one stage by their names.
type fixedChart struct {
	name, title, note, unit, stage string
	labels                         []string
	sets                           [2]struct{ name, figures string } // figures of the labels, separated by blanks
}

func fixedCharts() []fixedChart {
	type sets = [2]struct{ name, figures string }
	return []fixedChart{
		{
			"crypto", "Crypto", "Cipher throughput for trains of full-size and of small packets, on one core and on all cores together.", "GB/s",
			StageCrypto,
			[]string{"seal 45 × 1440 B", "open 45 × 1440 B", "seal 64 B", "open 64 B"},
			sets{
				{"one core", "seal_train open_train seal_small open_small"},
				{"all cores", "seal_train_all open_train_all seal_small_all open_small_all"},
			},
		},
		{
			"tun-trains", "TUN, trains", "Trains of 45 × 1440 B that one core writes into a TUN, or reads from it.", "Gbit/s",
			StageTUN,
			[]string{"write", "read"},
			sets{{"", "write_train read_train"}},
		},
		{
			"tun-small", "TUN, small packets", "Packets of 64 B that one core writes into a TUN, or reads from it.", "kpps",
			StageTUN,
			[]string{"write", "read"},
			sets{{"", "write_small read_small"}},
		},
		{
			"underlay", "Underlay", "Datagrams of 1472 B that one core sends and receives by UDP sockets over a veth.", "Gbit/s",
			StageUnderlay,
			[]string{"send", "receive"},
			sets{{"trains (GSO, GRO)", "send_gso receive_gso"}, {"one by one", "send_single receive_single"}},
		},
		{
			"datagrams", "Datagrams", "The highest rate of UDP datagrams, sent one by one, of which less than 1 % is lost.", "kpps",
			StageTunnel,
			[]string{"64 B", "1340 B"},
			sets{{"", "ndr64 ndr1340"}},
		},
	}
}

func (f *fixedChart) chart(r *Report) *chart {
	c := &chart{title: f.title, note: f.note, unit: f.unit, labels: f.labels}
	for _, set := range f.sets {
		s := barSet{name: set.name}
		for _, figure := range strings.Fields(set.figures) {
			s.values = append(s.values, r.value(f.stage, figure))
		}
		if s.values != nil {
			c.sets = append(c.sets, s)
		}
	}
	return c
}

// throughputChart has a set of bars for each number of lanes.
func (r *Report) throughputChart() *chart {
	c := &chart{
		title: "Throughput", unit: "Gbit/s", note: "TCP through one tunnel, both ends and the traffic on the same cores.",
	}
	p := PartsOf(r)
	if p.RawGbps > 0 {
		c.note += fmt.Sprintf(" Without a tunnel: up to %s Gbit/s.", gbpsText(p.RawGbps))
	}
	for _, streams := range tcpStreams() {
		c.labels = append(c.labels, term.Count(streams, "stream"))
	}
	for _, best := range bestByLanes(p.Tunnel) {
		s := barSet{name: term.Count(best.Lanes, "lane"), values: make([]float64, len(c.labels))}
		for i, streams := range tcpStreams() {
			for _, t := range p.Tunnel {
				if t.Lanes == best.Lanes && t.Streams == streams {
					s.values[i] = t.Gbps
				}
			}
		}
		c.sets = append(c.sets, s)
	}
	return c
}

func (r *Report) latencyChart() *chart {
	set := func(name, figure string) barSet {
		f := r.Find(StageTunnel, figure)
		if f == nil {
			f = &Figure{}
		}
		return barSet{name, []float64{f.More["p50_ms"], f.Value, f.More["p99_ms"]}}
	}
	return &chart{
		title: "Latency", unit: "ms", labels: []string{"half are below", "mean", "99 of 100 are below"},
		note: "ICMP round trips through the tunnel, idle and while four TCP streams take all there is.",
		sets: []barSet{set("idle", "rtt_idle"), set("under load", "rtt_load")},
	}
}

func (r *Report) limitChart() *chart {
	if r.Verdict == nil {
		return &chart{}
	}
	c := &chart{
		title: fmt.Sprintf("Where the time goes at %s Gbit/s", gbpsText(r.Verdict.Best.Gbps)), unit: "%", sets: make([]barSet, 1),
		note: "Shares of the processors' time, estimated. Limiting factor: " + r.Verdict.Limit.sentence(),
	}
	for _, x := range r.Verdict.Shares {
		c.labels = append(c.labels, x.Part.short())
		c.sets[0].values = append(c.sets[0].values, x.Percent)
	}
	return c
}
