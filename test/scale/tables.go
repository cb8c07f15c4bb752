// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/test/scale/model"
)

// tables returns the tables of the document, by the name of their markers.
func (f *figures) tables() (map[string]string, error) {
	checked, err := f.checkTable()
	if err != nil {
		return nil, err
	}
	return map[string]string{
		"machine": f.costs.Machine + ".", "stages": f.stageTable(), "contention": f.contentionTable(),
		"lines": f.linesTable(), "handoff": f.handOffTable(),
		"many": f.coresTable(f.many), "few": f.coresTable(f.few), "law": f.uslTable(), "mice": f.miceTable(),
		"elephant": f.elephantTable(), "stock": f.stockTable(), "check": checked, "forced": f.forcedContentionTable(),
	}, nil
}

// table returns a table in Markdown.
func table(head []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	line(head)
	line(strings.Split(strings.Repeat("---,", len(head)-1)+"---", ","))
	for _, r := range rows {
		line(r)
	}
	return b.String()
}

func (f *figures) stageTable() string {
	var rows [][]string
	what := map[model.Stage]string{
		model.AppSend: "sending application", model.TUNRead: "read the TUN", model.Split: "parse, route, split, account",
		model.Seal: "seal", model.Send: "sendmsg", model.Softirq: "NIC queue's softirq", model.Receive: "recvmmsg",
		model.Open: "open", model.Merge: "check, merge, account", model.TUNWrite: "write the TUN", model.AppReceive: "receiving application",
	}
	c := &f.costs
	for _, s := range model.AllStages() {
		cost := c.Stages[s]
		rows = append(rows, []string{
			what[s], fmt.Sprintf("%.0f", cost.Element), fmt.Sprintf("%.0f", cost.Packet), fmt.Sprintf("%.3f", cost.Byte),
			fmt.Sprintf("%.1f", cost.Of(c.Train)/1000), fmt.Sprintf("%.1f", cost.Of(c.Ack)/1000),
		})
	}
	head := []string{
		"stage", "ns per element", "per packet", "per byte", fmt.Sprintf("µs per train of %d × %d B", c.Train.Packets, c.Train.Bytes/c.Train.Packets),
		"µs per acknowledgement",
	}
	return table(head, rows)
}

func (f *figures) contentionTable() string {
	var rows [][]string
	for _, name := range []string{contendAtomic, contendReserve, contendWindow45, contendWindow1, contendSend, contendTUNWrite} {
		c := f.costs.Contentions[name]
		rows = append(rows, []string{name, ns(c.Alone), ns(c.Separate), ns(c.Shared)})
	}
	return table([]string{"operation", "alone", "two threads, separate", "two threads, shared"}, rows)
}

func ns(x float64) string {
	if x >= 10_000 {
		return fmt.Sprintf("%.1f µs", x/1000)
	}
	return fmt.Sprintf("%.0f ns", x)
}

// linesTable shows the shared cache lines, and the throughput at which each is the limit.
func (f *figures) linesTable() string {
	c, t := &f.costs, f.costs.Train
	send := c.Stages.Of(t, model.AppSend, model.TUNRead, model.Split, model.Seal, model.Send)
	receive := c.Stages.Of(t, model.Softirq, model.Receive, model.Open, model.Merge, model.TUNWrite, model.AppReceive)
	var rows [][]string
	for _, l := range []struct {
		name     string
		turn, of float64
	}{
		{"session counter", c.Lines.Nonce, send},
		{"replay window", c.Lines.WindowElement + c.Lines.WindowPacket*float64(t.Packets), receive},
		{"lines that senders share in the kernel", c.Lines.Send, send},
	} {
		rows = append(rows, []string{
			l.name, ns(l.turn), fmt.Sprintf("%.2f %%", 100*l.turn/l.of), fmt.Sprintf("%.1f Tbit/s", float64(t.Bytes)*8/l.turn/1000),
		})
	}
	return table([]string{"shared by all lanes", "held per train", "share of the work on a train at that end", "highest throughput"}, rows)
}

// handOffTable shows the extra cost of sealing a train on another core.
func (f *figures) handOffTable() string {
	h := &f.costs.HandOff
	return table([]string{"extra cost of sealing a train on another core", ""}, [][]string{
		{"sealing, on that core", us(h.Over)},
		{"copying in sendmsg, on the first core", us(h.Back)},
		{"waking a sleeping thread, and sleeping again", us(h.Wake)},
		{"(for comparison: sealing a train)", us(f.costs.Stages[model.Seal].Of(f.costs.Train))},
	})
}

func us(ns float64) string { return fmt.Sprintf("%.1f µs", ns/1000) }

// coresTable shows the throughput by cores, and the bottleneck on the largest machine.
func (f *figures) coresTable(by map[string]map[int]summary) string {
	counts := coreCounts()
	head := []string{"Gbit/s, by cores of each machine"}
	for _, n := range counts {
		head = append(head, fmt.Sprint(n))
	}
	last := counts[len(counts)-1]
	var rows [][]string
	for _, w := range strategies() {
		row := []string{w.name}
		for _, n := range counts {
			s := by[w.name][n]
			row = append(row, fmt.Sprintf("%.0f", s.gbps))
		}
		s := by[w.name][last]
		rows = append(rows, append(row, s.bottleneckText()))
	}
	return table(append(head, fmt.Sprintf("busiest at %d", last)), rows)
}

// bottleneckText returns the bottleneck and its utilization.
func (s *summary) bottleneckText() string {
	name, share := s.bottleneck()
	return fmt.Sprintf("%s, %.0f %%", name, 100*share)
}

// uslTable shows the fitted scalability law.
func (f *figures) uslTable() string {
	var rows [][]string
	for _, w := range strategies() {
		u := f.usl[w.name]
		rows = append(rows, []string{w.name, fmt.Sprintf("%.1f", u.One), fmt.Sprintf("%.2f %%", 100*u.Serial), fmt.Sprintf("%.1e", u.Coherence)})
	}
	return table([]string{fmt.Sprintf("%d flows", manyFlows), "Gbit/s of one core", "serial fraction", "coherence"}, rows)
}

// miceTable shows the latency and loss of short flows.
func (f *figures) miceTable() string {
	head := []string{fmt.Sprintf("%d cores, short flows", miceCores)}
	for _, rate := range offered() {
		head = append(head, fmt.Sprintf("%d Gbit/s offered", rate))
	}
	var rows [][]string
	for _, w := range strategies() {
		row := []string{w.name}
		for _, rate := range offered() {
			s := f.mice[w.name][rate]
			row = append(row, fmt.Sprintf("%.2f / %.2f ms, %.1f %%", ms(s.p50), ms(s.p99), 100*s.lost))
		}
		rows = append(rows, row)
	}
	return table(head, rows)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (f *figures) elephantTable() string {
	var rows [][]string
	for _, w := range f.helpStrategies() {
		s := f.elephant[w.name][8]
		rows = append(rows, []string{
			w.name, fmt.Sprintf("%.1f", f.elephant[w.name][2].gbps), fmt.Sprintf("%.1f", f.elephant[w.name][4].gbps), fmt.Sprintf("%.1f", s.gbps), s.bottleneckText(),
			fmt.Sprintf("%.1f", f.elephant[w.name][16].gbps),
		})
	}
	return table([]string{"one flow", "2 cores, Gbit/s", "4 cores", "8 cores", "busiest at 8 cores", "16 cores"}, rows)
}

func (f *figures) stockTable() string {
	var rows [][]string
	for _, w := range stockStrategies() {
		row, at8 := []string{w.name}, f.stock[w.name][8]
		for _, cores := range []int{8, 16, 32} {
			row = append(row, fmt.Sprintf("%.1f", f.stock[w.name][cores].gbps))
		}
		rows = append(rows, append(row, at8.bottleneckText()))
	}
	head := fmt.Sprintf("%d flows from one port", stockFlows)
	return table([]string{head, "8 cores, Gbit/s", "16 cores", "32 cores", "busiest at 8 cores"}, rows)
}

// checkTable compares predictions with the medians of measurements.
func (f *figures) checkTable() (string, error) {
	var rows [][]string
	for _, s := range scenarios() {
		predicted, err := s.predict(&f.costs)
		if err != nil {
			return "", err
		}
		var gbps, left, cost, others []float64
		for _, o := range f.check.Scenes[s.Name] {
			gbps, cost, others = append(gbps, o.Gbps), append(cost, o.Cost[4]), append(others, o.Others)
			left = append(left, predicted.Gbps*s.availableShare(o.Others))
		}
		if len(gbps) == 0 {
			return "", fmt.Errorf("the check has no scenario %q", s.Name)
		}
		rows = append(rows, []string{
			s.Name, fmt.Sprintf("%.2f", predicted.Gbps), fmt.Sprintf("%.2f", median(others)), fmt.Sprintf("%.2f", median(left)),
			fmt.Sprintf("%.2f", median(gbps)), fmt.Sprintf("%+.0f %%", 100*(median(gbps)/median(left)-1)),
			fmt.Sprintf("%.2f", predicted.Cost[4]), fmt.Sprintf("%.2f", median(cost)), fmt.Sprintf("%+.0f %%", 100*(median(cost)/predicted.Cost[4]-1)),
		})
	}
	head := []string{
		"scenario", "Gbit/s predicted", "cores used by others", "predicted for the rest", "measured", "difference",
		"CPU ns per byte predicted", "measured", "difference",
	}
	return table(head, rows), nil
}

// forcedContentionTable compares the predicted with the measured cost of sharing a session.
func (f *figures) forcedContentionTable() string {
	l := &f.costs.Lines
	var rows [][]string
	for _, m := range []struct {
		name    string
		packets float64
		window  string
	}{{contendTrain, trainSegments, contendWindow45}, {contendSingle, 1, contendWindow1}} {
		c := f.costs.Contentions[m.name]
		alone := c.Separate - l.Alone - f.costs.Contentions[m.window].Alone
		predicted := alone + l.Nonce + l.WindowElement + l.WindowPacket*m.packets
		rows = append(rows, []string{
			m.name, ns(c.Separate), ns(predicted), ns(c.Shared), fmt.Sprintf("%.3f", predicted/c.Separate), fmt.Sprintf("%.3f", c.Shared/c.Separate),
		})
	}
	return table([]string{"two threads", "two sessions", "one session, predicted", "measured", "ratio predicted", "measured"}, rows)
}

// fillIn replaces the tables in the document, between <!-- scale:NAME --> and <!-- /scale -->.
func fillIn(path string, tables map[string]string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for name, t := range tables {
		begin, end := []byte("<!-- scale:"+name+" -->\n"), []byte("<!-- /scale -->\n")
		if bytes.Count(text, begin) != 1 {
			return fmt.Errorf("filling in %s: want one line %s", path, bytes.TrimSpace(begin))
		}
		from := bytes.Index(text, begin) + len(begin)
		to := bytes.Index(text[from:], end)
		if to < 0 {
			return fmt.Errorf("filling in %s: %s has no end", path, bytes.TrimSpace(begin))
		}
		text = bytes.Join([][]byte{text[:from], text[from+to:]}, []byte(strings.TrimRight(t, "\n")+"\n"))
	}
	return os.WriteFile(path, text, 0o644)
}
