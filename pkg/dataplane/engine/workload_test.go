// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// TestLoopYieldsToReceiversOfDatagrams carries several loads in turn in both directions.
func TestLoopYieldsToReceiversOfDatagrams(t *testing.T) {
	r := newRig(t)
	sending, receiving := false, false
	r.tx.load.yield = func(y bool) { sending = y }
	r.rx.load.yield = func(y bool) { receiving = y }
	tcp := map[flow.Ends]*flow.Flow{out4: {Ends: out4}, in4: {Ends: in4}, out6: {Ends: out6}, in6: {Ends: in6}}
	streams := func(n int) func(flow.Ends) []byte {
		return func(e flow.Ends) []byte { return tcp[e].Train(n, 1000) }
	}
	datagrams := func(n int) func(flow.Ends) []byte {
		return func(e flow.Ends) []byte { return e.UDPTrain(1000, make([]byte, n*1000)) }
	}
	for _, load := range []struct {
		name   string
		train  func(flow.Ends) []byte
		trains int
		yields bool
	}{
		{"long trains of TCP", streams(40), 10, false},
		{"single datagrams", datagrams(1), 100, true},
		{"too little to evaluate", streams(1), 10, true},
		{"single packets of TCP", streams(1), 100, false},
		{"short trains of datagrams", datagrams(4), 30, true},
		{"long trains of datagrams", datagrams(40), 10, false},
		{"few datagrams", datagrams(1), 10, false},
	} {
		for _, ends := range [][2]flow.Ends{{out4, in4}, {out6, in6}} {
			for range load.trains {
				r.transmit(load.train(ends[0]))
				r.conn.taken()
				run, size := r.seal(packetsOf(t, load.train(ends[1]))...)
				r.receive(run, size)
				r.delivered()
			}
			r.now += 2 * int64(10*time.Millisecond)
			r.transmit()
			r.rx.batch(0)
			if sending != load.yields || receiving != load.yields {
				t.Errorf("%s: the sender yields: %v, the receiver yields: %v, want %v", load.name, sending, receiving, load.yields)
			}
		}
	}
}

// TestLoopYieldsForASecondWithoutDatagrams carries too little to evaluate after a burst of datagrams: one datagram each 20 ms, or TCP.
func TestLoopYieldsForASecondWithoutDatagrams(t *testing.T) {
	for name, train := range map[string]func() []byte{
		"datagrams": func() []byte { return flow.WithVnetHeader(out4.UDP(make([]byte, 100))) },
		"TCP":       func() []byte { return (&flow.Flow{Ends: out4}).Train(1, 100) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			yields := false
			r.tx.load.yield = func(y bool) { yields = y }
			r.now += workloadInterval
			r.transmit() // ends an interval
			for range 100 {
				r.transmit(flow.WithVnetHeader(out4.UDP(make([]byte, 100))))
			}
			for passed := int64(0); passed < 2*workloadHold; passed += 2 * workloadInterval {
				r.now += 2 * workloadInterval
				r.transmit(train())
				if want := passed < workloadHold; yields != want {
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
		r.tx.load.yield = func(y bool) { yields = y }
		f := flow.Flow{Ends: out4}
		for range 20 {
			r.transmit(f.Train(10, 1000))
		}
		for range datagrams {
			r.transmit(flow.WithVnetHeader(out4.UDP(make([]byte, 1000))))
		}
		r.now += int64(10 * time.Millisecond)
		r.transmit()
		if yields != want {
			t.Errorf("%d datagrams beside 20 trains: the loop yields: %v, want %v", datagrams, yields, want)
		}
	}
}
