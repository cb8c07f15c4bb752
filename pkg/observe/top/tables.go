// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/observe/term"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// loadStyle is the style of a load that is critical near 1.
func loadStyle(share float64) style {
	switch {
	case share >= 0.9:
		return bad
	case share >= 0.7:
		return warn
	}
	return good
}

// nonzeroStyle is the style of a rate that should be zero.
func nonzeroStyle(rate float64) style {
	if rate > 0 {
		return bad
	}
	return plain
}

// largest returns the largest share, which gets a full bar, so that bars stay visible with many rows.
func largest[T any](rows []T, share func(*T) float64) (most float64) {
	for i := range rows {
		most = max(most, share(&rows[i]))
	}
	return most
}

// orDash returns s, or a dash for an unknown value.
func orDash(is bool, s string) cell {
	if !is {
		s = "-"
	}
	return text(s)
}

func text(s string) cell { return cell{text: s} }

func (r *renderer) lanes() *table {
	t := r.table(
		"no lanes",
		column{title: "LANE"}, column{title: "SHARE", rank: 2, bar: true}, column{rank: 2, right: true},
		column{title: "RX", rate: true}, column{title: "TX", rate: true},
		column{title: "RX pps", rank: 4, right: true}, column{title: "TX pps", rank: 4, right: true},
		column{title: "RX/TRAIN", rank: 5, right: true}, column{title: "TX/TRAIN", rank: 5, right: true},
		column{title: "RX/BATCH", rank: 6, right: true}, column{title: "TX/BATCH", rank: 6, right: true},
		column{title: "WORKER/s", rank: 7, right: true}, column{title: "DROPS/s", rank: 3, right: true},
	)
	most := largest(r.frame.Lanes, func(l *Lane) float64 { return l.Share })
	for i := range r.frame.Lanes {
		l := &r.frame.Lanes[i]
		if l.Name == slowLane && l.Rate() == 0 && l.DropRate == 0 {
			continue
		}
		t.rows = append(t.rows, []cell{
			text(term.Clean(l.Name)),
			{share: ratio(l.Share, most), style: good},
			text(percent(l.Share)),
			text(bits(l.Rx.ByteRate)), text(bits(l.Tx.ByteRate)),
			text(count(l.Rx.PacketRate)), text(count(l.Tx.PacketRate)),
			text(average(l.Rx.PerTrain)), text(average(l.Tx.PerTrain)), text(average(l.Rx.PerBatch)), text(average(l.Tx.PerBatch)),
			text(count(l.Rx.WorkerRate + l.Tx.WorkerRate)),
			{text: count(l.DropRate), style: nonzeroStyle(l.DropRate)},
		})
	}
	return t
}

// batchSizes shows how many messages one batch carried.
func (r *renderer) batchSizes() *table {
	t := r.table("no batches", column{title: "MESSAGES PER BATCH"})
	for i, size := range []string{"1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "65+"} {
		t.columns = append(t.columns, column{title: size, right: true, rank: 8 - i})
	}
	for _, d := range []struct {
		name string
		flow *Flow
	}{{"rx", &r.frame.Rx}, {"tx", &r.frame.Tx}} {
		row := []cell{text(d.name)}
		for _, share := range d.flow.BatchSizes {
			row = append(row, text(percent(share)))
		}
		t.rows = append(t.rows, row)
	}
	return t
}

func (r *renderer) queues() *table {
	t := r.table(
		"no NIC queues: no route to a peer, or the driver reports no queue counters",
		column{title: "QUEUE"}, column{title: "SHARE", rank: 1, bar: true}, column{rank: 1, right: true},
		column{title: "RX pps", rank: 2, right: true}, column{title: "RX", rank: 4, rate: true},
		column{title: "TX pps", rank: 5, right: true}, column{title: "TX", rank: 6, rate: true},
		column{title: "IRQ/s", rank: 3, right: true}, column{title: "CPUS", shrinkable: true},
	)
	most := largest(r.frame.Queues, func(q *Queue) float64 { return q.Share })
	for i := range r.frame.Queues {
		q := &r.frame.Queues[i]
		t.rows = append(t.rows, []cell{
			text(fmt.Sprintf("%s %d", term.Clean(q.Device), q.Queue)),
			{share: ratio(q.Share, most), style: good},
			text(percent(q.Share)),
			orDash(q.RxCounted, count(q.Rx.PacketRate)), orDash(q.RxCounted, bits(q.Rx.ByteRate)),
			orDash(q.TxCounted, count(q.Tx.PacketRate)), orDash(q.TxCounted, bits(q.Tx.ByteRate)),
			text(count(q.Interrupts)), text(cpuShares(q.Cores)),
		})
	}
	return t
}

// cpuShares is "cpu0 98%, cpu1 2%", or "cpu0" for one alone.
func cpuShares(cores []CPUShare) string {
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
		"no CPUs: cannot read /proc/stat",
		column{title: "CPU"}, column{title: "BUSY", bar: true}, column{title: "", right: true},
		column{title: "SOFTIRQ", rank: 1, right: true}, column{title: "NET_RX/s", rank: 2, right: true},
	)
	for _, c := range r.frame.Cores {
		t.rows = append(t.rows, []cell{
			text("cpu" + strconv.Itoa(c.CPU)),
			{share: c.Busy, style: loadStyle(c.Busy)},
			text(percent(c.Busy)),
			text(percent(c.SoftIRQ)), text(count(c.NetRx)),
		})
	}
	return t
}

// shortKey is the number of characters of an abbreviated public key.
const shortKey = 12

func (r *renderer) peers(whole bool) *table {
	t := r.table(
		"no peers configured",
		column{title: "PEER"}, column{title: "SHARE", rank: 3, bar: true}, column{rank: 3, right: true},
		column{title: "RX", rate: true}, column{title: "TX", rate: true},
		column{title: "HANDSHAKE", rank: 1, right: true}, column{title: "SPREAD", rank: 2}, column{title: "PQ KEY", rank: 2, right: true},
		column{title: "RX TOTAL", rank: 5, right: true}, column{title: "TX TOTAL", rank: 5, right: true},
		column{title: "ENDPOINT", rank: 4},
	)
	most := largest(r.frame.Peers, func(p *Peer) float64 { return p.Share })
	for i := range r.frame.Peers {
		p := &r.frame.Peers[i]
		key := peerText(p.PublicKey, p.Name, whole)
		t.rows = append(t.rows, []cell{
			text(key),
			{share: ratio(p.Share, most), style: good},
			text(percent(p.Share)),
			text(bits(p.RxRate)), text(bits(p.TxRate)),
			text(ageText(p.Handshake)), text(spreadText(p)), postQuantumCell(p.PostQuantum), text(bytes(p.RxBytes)), text(bytes(p.TxBytes)), text(term.Clean(p.Endpoint)),
		})
	}
	return t
}

// peerText returns the name of a peer, or else its key, which is shortened unless whole.
func peerText(key, name string, whole bool) string {
	if name != "" {
		return term.Clean(name)
	}
	key = term.Clean(key)
	if !whole && len(key) > shortKey {
		key = key[:shortKey]
	}
	return key
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

// postQuantumCell is the age of the key of the session in use, or why there is none.
func postQuantumCell(p *config.PeerPostQuantum) cell {
	switch {
	case p == nil:
		return text("off")
	case p.Stale:
		return cell{text: ageText(p.Age), style: warn}
	case p.Active:
		return text(ageText(p.Age))
	case p.Blocked:
		return cell{text: "blocked", style: bad}
	case p.Downgraded:
		return cell{text: "lost", style: bad}
	}
	return text("none")
}

func (r *renderer) drops() *table {
	t := r.table(
		"no drops",
		column{title: "DROP REASON"}, column{title: "DROPS/s", right: true}, column{title: "TOTAL", right: true},
		column{title: "MEANING", shrinkable: true, rank: 1},
	)
	for _, d := range r.frame.Drops {
		t.rows = append(t.rows, []cell{
			{text: term.Clean(d.Reason), style: nonzeroStyle(d.Rate)},
			{text: count(d.Rate), style: nonzeroStyle(d.Rate)},
			text(count(float64(d.Packets))), text(term.Clean(d.Help)),
		})
	}
	return t
}

// table returns a table without rows; empty is shown if it stays empty.
func (r *renderer) table(empty string, columns ...column) *table {
	return &table{columns: columns, ascii: r.ASCII, empty: empty}
}
