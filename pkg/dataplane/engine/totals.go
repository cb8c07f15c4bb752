// SPDX-License-Identifier: Apache-2.0

package engine

// An engine that takes over from another adds the counters of the latter to its own: a counter that decreases breaks graphs.

// Resume adds the counters of a previous engine to all results of Stats. It ignores lanes that this engine does not
// have.
func (e *Engine) Resume(before *Stats) { e.before.Store(before) }

// add adds the counters of a previous engine.
func (s *Stats) add(before *Stats) {
	for i := range min(len(s.Lanes), len(before.Lanes)) {
		s.Lanes[i].add(&before.Lanes[i])
	}
	s.Slow.add(&before.Slow)
	addCounts(s.Drops, before.Drops)
	s.SprayRefused += before.SprayRefused
}

func (s *LaneStats) add(o *LaneStats) {
	for _, sum := range []struct {
		to   *uint64
		more uint64
	}{
		{&s.TxPackets, o.TxPackets},
		{&s.TxBytes, o.TxBytes},
		{&s.TxTrains, o.TxTrains},
		{&s.TxRuns, o.TxRuns},
		{&s.RxPackets, o.RxPackets},
		{&s.RxBytes, o.RxBytes},
		{&s.RxTrains, o.RxTrains},
		{&s.RxRuns, o.RxRuns},
		{&s.TxMarks, o.TxMarks},
		{&s.TxControl, o.TxControl},
		{&s.RxControl, o.RxControl},
		{&s.TxSprayed, o.TxSprayed},
		{&s.RxSprayed, o.RxSprayed},
		{&s.RxMarks, o.RxMarks},
		{&s.ICMPErrors, o.ICMPErrors},
		{&s.ICMPLimited, o.ICMPLimited},
		{&s.SocketDrops, o.SocketDrops},
		{&s.TxWorkers.Submitted, o.TxWorkers.Submitted},
		{&s.TxWorkers.Done, o.TxWorkers.Done},
		{&s.TxWorkers.ByLane, o.TxWorkers.ByLane},
		{&s.TxWorkers.BackOffs, o.TxWorkers.BackOffs},
		{&s.RxWorkers.Submitted, o.RxWorkers.Submitted},
		{&s.RxWorkers.Done, o.RxWorkers.Done},
		{&s.RxWorkers.ByLane, o.RxWorkers.ByLane},
		{&s.RxWorkers.BackOffs, o.RxWorkers.BackOffs},
	} {
		*sum.to += sum.more
	}
	s.RxOrder.Add(&o.RxOrder)
	s.TxRunSizes.Add(&o.TxRunSizes)
	s.RxRunSizes.Add(&o.RxRunSizes)
	addCounts(s.Drops, o.Drops)
}

func addCounts(to, more map[string]uint64) {
	for reason, n := range more {
		to[reason] += n
	}
}

// PeerTraffic is the set of all counters of a peer.
type PeerTraffic struct {
	RxBytes uint64      `json:"rx_bytes"`
	TxBytes uint64      `json:"tx_bytes"`
	Packets PeerPackets `json:"packets"`
}

// Totals returns all counters of the peer.
func (p *Peer) Totals() (t PeerTraffic) {
	t.RxBytes, t.TxBytes = p.Traffic()
	t.Packets = p.Packets()
	return t
}

// AddTotals adds the counters of a previous engine for the peer.
func (p *Peer) AddTotals(before PeerTraffic) {
	p.slow.rx.Add(before.RxBytes)
	p.slow.tx.Add(before.TxBytes)
	p.slow.rxPackets.Add(before.Packets.Rx)
	p.slow.txPackets.Add(before.Packets.Tx)
	p.slow.rxDrops.Add(before.Packets.RxDrops)
	p.slow.txDrops.Add(before.Packets.TxDrops)
}
