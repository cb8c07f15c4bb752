// SPDX-License-Identifier: Apache-2.0

package flow_test

import (
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

func ends(v6 bool) flow.Ends {
	if v6 {
		return flow.Ends{Src: netip.MustParseAddrPort("[fd00::1]:1000"), Dst: netip.MustParseAddrPort("[fd00::2]:2000")}
	}
	return flow.Ends{Src: netip.MustParseAddrPort("10.0.0.1:1000"), Dst: netip.MustParseAddrPort("10.0.0.2:2000")}
}

// TestSplitPacketsMergeAgain proves the checksums: the merger joins no packet whose checksum is wrong.
func TestSplitPacketsMergeAgain(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		f := flow.Flow{Ends: ends(v6), ID: 7}
		udp := f.UDPTrain(100, make([]byte, 350))
		for name, train := range map[string][]byte{"tcp": f.Train(5, 100), "udp": udp} {
			packets, err := flow.Packets(train)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			m, sink := offload.NewMerger(true), &countingSink{}
			for _, p := range packets {
				m.Add(p)
			}
			if _, err := m.Flush(sink); err != nil || sink.trains != 1 {
				t.Errorf("%s, IPv6 %v: %d packets became %d trains, want 1", name, v6, len(packets), sink.trains)
			}
		}
	}
}

type countingSink struct{ trains int }

func (s *countingSink) WriteTrain([][]byte) error {
	s.trains++
	return nil
}

func TestCheckerSeesLossAndReordering(t *testing.T) {
	for name, order := range map[string][]int{"loss": {0, 2}, "reordering": {1, 0}, "duplicate": {0, 0}} {
		var c flow.Checker
		f := flow.Flow{Ends: ends(false)}
		trains := [][]byte{f.Next(8), f.Train(3, 9), f.Next(10)}
		var err error
		for _, i := range order {
			if e := c.Take(trains[i]); e != nil {
				err = e
			}
		}
		if err == nil {
			t.Errorf("%s went unseen", name)
		}
	}
}

func TestCheckerAcceptsFlowsInOrder(t *testing.T) {
	var c flow.Checker
	f, g := flow.Flow{Ends: ends(false), ID: 1}, flow.Flow{Ends: ends(true), ID: 2}
	for _, train := range [][]byte{f.Next(8), g.Train(4, 50), f.Train(3, 1000), g.Next(20), f.Next(9)} {
		if err := c.Take(train); err != nil {
			t.Fatal(err)
		}
	}
	if c.Total() != 10 {
		t.Errorf("%d packets taken, want 10", c.Total())
	}
}
