// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"strconv"
	"strings"
)

// load is the style of a share that is too much when it is near 1.
func load(share float64) style {
	switch {
	case share >= 0.9:
		return bad
	case share >= 0.7:
		return warn
	}
	return good
}

// alarm is the style of what should not happen.
func alarm(rate float64) style {
	if rate > 0 {
		return bad
	}
	return plain
}

// largest is what bars are drawn in relation to, so that they can be seen where many share.
func largest[T any](rows []T, share func(*T) float64) (most float64) {
	for i := range rows {
		most = max(most, share(&rows[i]))
	}
	return most
}

// known is a dash for what is not.
func known(is bool, s string) cell {
	if !is {
		s = "-"
	}
	return text(s)
}

func text(s string) cell { return cell{text: s} }

func (r *renderer) lanes() *table {
	t := r.table(
		"no lane",
		column{title: "LANE"}, column{title: "SHARE", rank: 2, bar: true}, column{rank: 2, right: true},
		column{title: "RECEIVED", rate: true}, column{title: "SENT", rate: true},
		column{title: "RX pps", rank: 4, right: true}, column{title: "TX pps", rank: 4, right: true},
		column{title: "RX/TRAIN", rank: 5, right: true}, column{title: "TX/TRAIN", rank: 5, right: true},
		column{title: "RX/RUN", rank: 6, right: true}, column{title: "TX/RUN", rank: 6, right: true},
		column{title: "CREW/s", rank: 7, right: true}, column{title: "DROPS/s", rank: 3, right: true},
	)
	most := largest(r.frame.Lanes, func(l *Lane) float64 { return l.Share })
	for i := range r.frame.Lanes {
		l := &r.frame.Lanes[i]
		if l.Name == slowLane && l.Rate() == 0 && l.DropRate == 0 {
			continue
		}
		t.rows = append(t.rows, []cell{
			text(clean(l.Name)),
			{share: ratio(l.Share, most), style: good},
			text(percent(l.Share)),
			text(bits(l.Rx.ByteRate)), text(bits(l.Tx.ByteRate)),
			text(count(l.Rx.PacketRate)), text(count(l.Tx.PacketRate)),
			text(average(l.Rx.PerTrain)), text(average(l.Tx.PerTrain)), text(average(l.Rx.PerRun)), text(average(l.Tx.PerRun)),
			text(count(l.Rx.CrewRate + l.Tx.CrewRate)),
			{text: count(l.DropRate), style: alarm(l.DropRate)},
		})
	}
	return t
}

// runSizes says how many messages went in one system call.
func (r *renderer) runSizes() *table {
	t := r.table("no run", column{title: "MESSAGES PER RUN"})
	for i, size := range []string{"1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "65-"} {
		t.columns = append(t.columns, column{title: size, right: true, rank: 8 - i})
	}
	for _, d := range []struct {
		name string
		flow *Flow
	}{{"received", &r.frame.Rx}, {"sent", &r.frame.Tx}} {
		row := []cell{text(d.name)}
		for _, share := range d.flow.RunSizes {
			row = append(row, text(percent(share)))
		}
		t.rows = append(t.rows, row)
	}
	return t
}

func (r *renderer) queues() *table {
	t := r.table(
		"no queue is known: no NIC leads to a peer, or its driver tells nothing of its queues",
		column{title: "QUEUE"}, column{title: "SHARE", rank: 1, bar: true}, column{rank: 1, right: true},
		column{title: "RX pps", rank: 2, right: true}, column{title: "RECEIVED", rank: 4, rate: true},
		column{title: "TX pps", rank: 5, right: true}, column{title: "SENT", rank: 6, rate: true},
		column{title: "IRQ/s", rank: 3, right: true}, column{title: "ON CORES", cut: true},
	)
	most := largest(r.frame.Queues, func(q *Queue) float64 { return q.Share })
	for i := range r.frame.Queues {
		q := &r.frame.Queues[i]
		t.rows = append(t.rows, []cell{
			text(fmt.Sprintf("%s %d", clean(q.Device), q.Queue)),
			{share: ratio(q.Share, most), style: good},
			text(percent(q.Share)),
			known(q.Counts, count(q.Rx.PacketRate)), known(q.Counts, bits(q.Rx.ByteRate)),
			known(q.CountsSent, count(q.Tx.PacketRate)), known(q.CountsSent, bits(q.Tx.ByteRate)),
			text(count(q.Interrupts)), text(parts(q.Cores)),
		})
	}
	return t
}

// parts is "cpu0 98%, cpu1 2%", or "cpu0" for one alone.
func parts(cores []Part) string {
	if len(cores) == 1 {
		return "cpu" + strconv.Itoa(cores[0].CPU)
	}
	var texts []string
	for _, p := range cores {
		texts = append(texts, fmt.Sprintf("cpu%d %s", p.CPU, percent(p.Share)))
	}
	return strings.Join(texts, ", ")
}

func (r *renderer) cores() *table {
	t := r.table(
		"no core is known: /proc/stat cannot be read",
		column{title: "CORE"}, column{title: "BUSY", bar: true}, column{title: "", right: true},
		column{title: "SOFTIRQ", rank: 1, right: true}, column{title: "NET_RX/s", rank: 2, right: true},
	)
	for _, c := range r.frame.Cores {
		t.rows = append(t.rows, []cell{
			text("cpu" + strconv.Itoa(c.CPU)),
			{share: c.Busy, style: load(c.Busy)},
			text(percent(c.Busy)),
			text(percent(c.SoftIRQ)), text(count(c.NetRx)),
		})
	}
	return t
}

// shortKey is what people tell peers apart by.
const shortKey = 12

func (r *renderer) peers(whole bool) *table {
	t := r.table(
		"no peer is configured",
		column{title: "PEER"}, column{title: "SHARE", rank: 3, bar: true}, column{rank: 3, right: true},
		column{title: "RECEIVED", rate: true}, column{title: "SENT", rate: true},
		column{title: "HANDSHAKE", rank: 1, right: true}, column{title: "SPREAD", rank: 2},
		column{title: "RX TOTAL", rank: 5, right: true}, column{title: "TX TOTAL", rank: 5, right: true},
		column{title: "ENDPOINT", rank: 4},
	)
	most := largest(r.frame.Peers, func(p *Peer) float64 { return p.Share })
	for i := range r.frame.Peers {
		p := &r.frame.Peers[i]
		key := clean(p.PublicKey)
		if !whole && len(key) > shortKey {
			key = key[:shortKey]
		}
		t.rows = append(t.rows, []cell{
			text(key),
			{share: ratio(p.Share, most), style: good},
			text(percent(p.Share)),
			text(bits(p.RxRate)), text(bits(p.TxRate)),
			text(ago(p.Handshake)), text(spreadText(p)), text(bytes(p.RxBytes)), text(bytes(p.TxBytes)), text(clean(p.Endpoint)),
		})
	}
	return t
}

func spreadText(p *Peer) string {
	switch {
	case p.Spread == 0:
		return "off"
	case p.Planned:
		return fmt.Sprintf("%d planned", p.Spread)
	}
	return fmt.Sprintf("%d ports", p.Spread)
}

func (r *renderer) drops() *table {
	t := r.table(
		"nothing was dropped",
		column{title: "DROPPED FOR"}, column{title: "PER SECOND", right: true}, column{title: "IN ALL", right: true},
		column{title: "MEANING", cut: true, rank: 1},
	)
	for _, d := range r.frame.Drops {
		t.rows = append(t.rows, []cell{
			{text: clean(d.Reason), style: alarm(d.Rate)},
			{text: count(d.Rate), style: alarm(d.Rate)},
			text(count(float64(d.Packets))), text(clean(d.Help)),
		})
	}
	return t
}

// table is one without rows; empty says why there may be none.
func (r *renderer) table(empty string, columns ...column) *table {
	return &table{columns: columns, ascii: r.ASCII, empty: empty}
}
