// SPDX-License-Identifier: Apache-2.0

package engine

// Counters of an engine that has left, which another one goes on with: a counter that went back would break graphs.

// Resume adds before, what another engine has counted, to all that Stats returns. It must be called before Start. Lanes beyond
// those of this engine are left out.
func (e *Engine) Resume(before *Stats) { e.before = before }

// add adds what another engine counted.
func (s *Stats) add(before *Stats) {
	for i := range min(len(s.Lanes), len(before.Lanes)) {
		s.Lanes[i].add(&before.Lanes[i])
	}
	s.Slow.add(&before.Slow)
	addCounts(s.Drops, before.Drops)
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
		{&s.TxCrew.Offered, o.TxCrew.Offered},
		{&s.TxCrew.Done, o.TxCrew.Done},
		{&s.TxCrew.TakenBack, o.TxCrew.TakenBack},
		{&s.TxCrew.BackOffs, o.TxCrew.BackOffs},
		{&s.RxCrew.Offered, o.RxCrew.Offered},
		{&s.RxCrew.Done, o.RxCrew.Done},
		{&s.RxCrew.TakenBack, o.RxCrew.TakenBack},
		{&s.RxCrew.BackOffs, o.RxCrew.BackOffs},
	} {
		*sum.to += sum.more
	}
	s.TxRunSizes.Add(&o.TxRunSizes)
	s.RxRunSizes.Add(&o.RxRunSizes)
	addCounts(s.Drops, o.Drops)
}

func addCounts(to, more map[string]uint64) {
	for reason, n := range more {
		to[reason] += n
	}
}

// PeerTraffic is all that an engine has counted for a peer.
type PeerTraffic struct {
	RxBytes uint64      `json:"rx_bytes"`
	TxBytes uint64      `json:"tx_bytes"`
	Packets PeerPackets `json:"packets"`
}

// Totals returns what was counted for the peer.
func (p *Peer) Totals() (t PeerTraffic) {
	t.RxBytes, t.TxBytes = p.Traffic()
	t.Packets = p.Packets()
	return t
}

// Resume adds what another engine has counted for the peer.
func (p *Peer) Resume(before PeerTraffic) {
	p.slow.rx.Add(before.RxBytes)
	p.slow.tx.Add(before.TxBytes)
	p.slow.rxPackets.Add(before.Packets.Rx)
	p.slow.txPackets.Add(before.Packets.Tx)
	p.slow.rxDrops.Add(before.Packets.RxDrops)
	p.slow.txDrops.Add(before.Packets.TxDrops)
}
