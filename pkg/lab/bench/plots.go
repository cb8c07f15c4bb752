// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"math"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/lab/plot"
)

// Plot is one picture of a report.
type Plot struct {
	Name string // file name without its extension
	SVG  []byte
}

// Plots draws what the report has figures for.
func Plots(r *Report) []Plot {
	var plots []Plot
	for _, draw := range []func(*Report) (Plot, bool){
		plotCrypto, plotTUN, plotTUNSmall, plotUnderlay, plotThroughput, plotLatency, plotPackets, plotShares,
	} {
		if p, ok := draw(r); ok {
			plots = append(plots, p)
		}
	}
	return plots
}

// chart is what all plots of a report have in common.
func (r *Report) chart(title, note string) plot.Chart {
	where := fmt.Sprintf("%s, %s.", orUnknown(r.Machine.CPU), plural(r.Machine.Cores, "core"))
	return plot.Chart{Title: title, Note: note + " " + where, Command: r.Command}
}

// missing is a bar that is not drawn.
func missing() float64 { return math.NaN() }

// valueOf is a figure, or missing.
func (r *Report) valueOf(stage, name string) float64 {
	if f, ok := r.Find(stage, name); ok {
		return f.Value
	}
	return missing()
}

// set is one colour of bars: figures of one stage by their names.
func (r *Report) set(name, stage string, figures ...string) plot.BarSet {
	s := plot.BarSet{Name: name}
	for _, f := range figures {
		s.Values = append(s.Values, r.valueOf(stage, f))
	}
	return s
}

// drawBars is false when there is nothing to draw.
func drawBars(name string, c plot.Chart, unit string, labels []string, sets ...plot.BarSet) (Plot, bool) {
	sets = slices.DeleteFunc(sets, func(s plot.BarSet) bool {
		return !slices.ContainsFunc(s.Values, func(v float64) bool { return !math.IsNaN(v) })
	})
	if len(sets) == 0 {
		return Plot{}, false
	}
	return Plot{Name: name, SVG: plot.Bars(c, plot.Axis{Label: unit}, labels, sets...)}, true
}

func plotCrypto(r *Report) (Plot, bool) {
	c := r.chart("Crypto", "Cipher throughput for trains of full-size and of small packets, on one core and on all cores together.")
	return drawBars("crypto", c, "GB/s", []string{"seal 45 × 1440 B", "open 45 × 1440 B", "seal 64 B", "open 64 B"},
		r.set("one core", StageCrypto, "seal_train", "open_train", "seal_small", "open_small"),
		r.set(fmt.Sprintf("%d cores", r.Machine.Cores), StageCrypto,
			"seal_train_all", "open_train_all", "seal_small_all", "open_small_all"))
}

func plotTUN(r *Report) (Plot, bool) {
	c := r.chart("TUN, trains", "Trains of 45 × 1440 B that one core writes into a TUN, or reads from it.")
	return drawBars("tun-trains", c, "Gbit/s", []string{"write", "read"}, r.set("", StageTUN, "write_train", "read_train"))
}

func plotTUNSmall(r *Report) (Plot, bool) {
	c := r.chart("TUN, small packets", "Packets of 64 B that one core writes into a TUN, or reads from it.")
	return drawBars("tun-small", c, "kpps", []string{"write", "read"}, r.set("", StageTUN, "write_small", "read_small"))
}

func plotUnderlay(r *Report) (Plot, bool) {
	c := r.chart("Underlay", "Datagrams of 1472 B that one core sends and receives by UDP sockets over a veth.")
	return drawBars("underlay", c, "Gbit/s", []string{"send", "receive"},
		r.set("trains (GSO, GRO)", StageUnderlay, "send_gso", "receive_gso"),
		r.set("one by one", StageUnderlay, "send_single", "receive_single"))
}

// tcpFigure is the tunnel's throughput with so many lanes and streams, or missing.
func (r *Report) tcpFigure(lanes, streams int) float64 {
	for _, f := range r.Figures {
		if f.Stage == StageTunnel && f.Name == "tcp" && f.Lanes == lanes && f.Streams == streams && f.Error == "" {
			return f.Value
		}
	}
	return missing()
}

func plotThroughput(r *Report) (Plot, bool) {
	var lanes []int
	for _, f := range r.Figures {
		if f.Stage == StageTunnel && f.Name == "tcp" && !slices.Contains(lanes, f.Lanes) {
			lanes = append(lanes, f.Lanes)
		}
	}
	var sets []plot.BarSet
	for _, n := range lanes {
		s := plot.BarSet{Name: plural(n, "lane")}
		for _, streams := range tcpStreams() {
			s.Values = append(s.Values, r.tcpFigure(n, streams))
		}
		sets = append(sets, s)
	}
	var labels []string
	for _, streams := range tcpStreams() {
		labels = append(labels, plural(streams, "stream"))
	}
	note := "TCP through one tunnel, both ends and the traffic on the same cores."
	if raw := PartsOf(r).RawGbps; raw > 0 {
		note += fmt.Sprintf(" Without a tunnel: up to %s Gbit/s.", gbpsText(raw))
	}
	return drawBars("throughput", r.chart("Throughput", note), "Gbit/s", labels, sets...)
}

func plotLatency(r *Report) (Plot, bool) {
	idle, _ := r.Find(StageTunnel, "rtt_idle")
	load, _ := r.Find(StageTunnel, "rtt_load")
	if idle.More == nil && load.More == nil {
		return Plot{}, false
	}
	set := func(name string, f Figure) plot.BarSet {
		if f.More == nil {
			return plot.BarSet{Name: name, Values: []float64{missing()}}
		}
		return plot.BarSet{Name: name, Values: []float64{f.More["p50_ms"], f.Value, f.More["p99_ms"]}}
	}
	c := r.chart("Latency", "ICMP round trips through the tunnel, idle and while four TCP streams take all there is.")
	return drawBars("latency", c, "ms", []string{"half are below", "mean", "99 of 100 are below"},
		set("idle", idle), set("under load", load))
}

func plotPackets(r *Report) (Plot, bool) {
	c := r.chart("Datagrams", "The highest rate of UDP datagrams, sent one by one, of which less than 1 % is lost.")
	return drawBars("datagrams", c, "kpps", []string{"64 B", "1340 B"}, r.set("", StageTunnel, "ndr64", "ndr1340"))
}

func plotShares(r *Report) (Plot, bool) {
	if r.Verdict == nil {
		return Plot{}, false
	}
	var labels []string
	var s plot.BarSet
	for _, x := range r.Verdict.Shares {
		labels = append(labels, x.Part.short())
		s.Values = append(s.Values, x.Percent)
	}
	c := r.chart(fmt.Sprintf("Where the time goes at %s Gbit/s", gbpsText(r.Verdict.Best.Gbps)),
		"Shares of the processors' time, estimated. Limiting factor: "+r.Verdict.Limit.sentence())
	return drawBars("limit", c, "%", labels, s)
}
