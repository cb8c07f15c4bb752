// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
)

func TestEngineContinuesFromPreviousEngine(t *testing.T) {
	r := newEngineRig(t)
	r.engine.Resume(&Stats{Lanes: []LaneStats{{TxBytes: 1}, {TxBytes: 2}}, Slow: LaneStats{RxBytes: 3}})
	if s := r.engine.Stats(); len(s.Lanes) != 1 || s.Lanes[0].TxBytes != 1 || s.Slow.RxBytes != 3 {
		t.Errorf("got %+v", s)
	}
}

func TestPeerCountersContinueFromPreviousEngine(t *testing.T) {
	want := PeerTraffic{RxBytes: 1, TxBytes: 2, Packets: PeerPackets{Rx: 3, Tx: 4, RxDrops: 5, TxDrops: 6}}
	r := newEngineRig(t)
	half := PeerTraffic{RxBytes: 1, TxBytes: 1, Packets: PeerPackets{Rx: 1, Tx: 2, RxDrops: 2, TxDrops: 3}}
	r.Peer.AddTotals(half)
	r.Peer.AddTotals(PeerTraffic{TxBytes: 1, Packets: PeerPackets{Rx: 2, Tx: 2, RxDrops: 3, TxDrops: 3}})
	if got := r.Peer.Totals(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
