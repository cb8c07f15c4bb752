// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fill sets each counter below v to a number of its own, times factor.
func fill(v reflect.Value, next *uint64, factor uint64) {
	switch v.Kind() {
	case reflect.Uint64:
		*next++
		v.SetUint(*next * factor)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), next, factor)
		}
	case reflect.Array, reflect.Slice:
		for i := range v.Len() {
			fill(v.Index(i), next, factor)
		}
	case reflect.Map:
		*next++
		v.Set(reflect.ValueOf(map[string]uint64{"replay": *next * factor}))
	}
}

func filled(lanes int, factor uint64) *Stats {
	s := &Stats{Lanes: make([]LaneStats, lanes)}
	fill(reflect.ValueOf(s).Elem(), new(uint64), factor)
	return s
}

func TestCountersContinueFromPreviousEngine(t *testing.T) {
	got := filled(2, 1)
	got.add(filled(2, 1))
	if diff := cmp.Diff(filled(2, 2), got); diff != "" {
		t.Error(diff)
	}
}

func TestCountersOfMissingLanesAreIgnored(t *testing.T) {
	r := newRig(t)
	n := len(r.engine.lanes)
	before := filled(n+1, 1)
	r.engine.Resume(before)
	got := r.engine.Stats()
	if len(got.Lanes) != n || got.Lanes[0].TxBytes != before.Lanes[0].TxBytes || got.Slow.RxBytes != before.Slow.RxBytes {
		t.Errorf("%d lanes, %+v", len(got.Lanes), got)
	}
}

func TestPeerCountersContinueFromPreviousEngine(t *testing.T) {
	want := PeerTraffic{RxBytes: 1, TxBytes: 2, Packets: PeerPackets{Rx: 3, Tx: 4, RxDrops: 5, TxDrops: 6}}
	r := newRig(t)
	half := PeerTraffic{RxBytes: 1, TxBytes: 1, Packets: PeerPackets{Rx: 1, Tx: 2, RxDrops: 2, TxDrops: 3}}
	r.peer.AddTotals(half)
	r.peer.AddTotals(PeerTraffic{TxBytes: 1, Packets: PeerPackets{Rx: 2, Tx: 2, RxDrops: 3, TxDrops: 3}})
	if got := r.peer.Totals(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
