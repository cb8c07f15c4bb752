// SPDX-License-Identifier: Apache-2.0

package send

import (
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

func TestSenderYieldsToReceiversOfDatagrams(t *testing.T) {
	r, yields := newRig(t), false
	r.tx.load.Yield = func(y bool) { yields = y }
	lanetest.EachLoad(t, [2]flow.Ends{lanetest.Out4, lanetest.Out6}, func(train []byte) {
		r.transmit(train)
		r.Conn.Taken()
	}, func() {
		r.Now += 2 * int64(10*time.Millisecond)
		r.transmit()
	}, &yields)
}

// TestLoopYieldsForASecondWithoutDatagrams carries too little to evaluate after a burst of datagrams: one datagram each 20 ms, or TCP.
func TestLoopYieldsForASecondWithoutDatagrams(t *testing.T) {
	for name, train := range map[string]func() []byte{
		"datagrams": func() []byte { return flow.WithVnetHeader(lanetest.Out4.UDP(make([]byte, 100))) },
		"TCP":       func() []byte { return (&flow.Flow{Ends: lanetest.Out4}).Train(1, 100) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			yields := false
			r.tx.load.Yield = func(y bool) { yields = y }
			r.Now += lane.WorkloadInterval
			r.transmit() // ends an interval
			for range 100 {
				r.transmit(flow.WithVnetHeader(lanetest.Out4.UDP(make([]byte, 100))))
			}
			for passed := int64(0); passed < 2*lane.WorkloadHold; passed += 2 * lane.WorkloadInterval {
				r.Now += 2 * lane.WorkloadInterval
				r.transmit(train())
				if want := passed < lane.WorkloadHold; yields != want {
					t.Fatalf("%v after the burst: the loop yields: %v, want %v", time.Duration(passed), yields, want)
				}
			}
		})
	}
}

// TestLoopYieldsToMostOfItsLoad mixes TCP in trains with datagrams.
func TestLoopYieldsToMostOfItsLoad(t *testing.T) {
	for datagrams, want := range map[int]bool{5: false, 100: true} {
		r := newRig(t)
		yields := false
		r.tx.load.Yield = func(y bool) { yields = y }
		f := flow.Flow{Ends: lanetest.Out4}
		for range 20 {
			r.transmit(f.Train(10, 1000))
		}
		for range datagrams {
			r.transmit(flow.WithVnetHeader(lanetest.Out4.UDP(make([]byte, 1000))))
		}
		r.Now += int64(10 * time.Millisecond)
		r.transmit()
		if yields != want {
			t.Errorf("%d datagrams beside 20 trains: the loop yields: %v, want %v", datagrams, yields, want)
		}
	}
}
