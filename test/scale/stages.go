// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
	"github.com/ropewalk/ropewalk/test/bench/result"
)

// mtu of the TUN.
const mtu = 1420

// newPair returns the two sides of one session.
func newPair() (a, b *session.Keypair, err error) {
	keys := noise.Keys{Local: 1, Remote: 2, Initiator: true}
	for _, k := range []*noise.SessionKey{&keys.Send, &keys.Recv} {
		_, _ = rand.Read(k[:]) // never fails
	}
	if a, err = session.NewKeypair(&keys, 0); err != nil {
		return nil, nil, err
	}
	keys.Send, keys.Recv = keys.Recv, keys.Send
	keys.Local, keys.Remote = keys.Remote, keys.Local
	b, err = session.NewKeypair(&keys, 0)
	return a, b, err
}

// trainBench processes one train in stages, without system calls.
type trainBench struct {
	a, b    *session.Keypair
	element []byte
	layout  session.Layout
	train   offload.Train
	sealed  [][]byte // one buffer for each of benchTrains
	opened  []session.Message
	scratch session.Scratch
	merger  *offload.Merger
}

// benchTrains is the number of trains that are processed in turn: 4 MB, more than the L2 cache.
const benchTrains = 64

// newTrainBench prepares trains of that many TCP packets with size bytes of payload each.
func newTrainBench(packets, size int) (*trainBench, error) {
	a, b, err := newPair()
	if err != nil {
		return nil, err
	}
	ends := flow.Ends{
		Src: netip.AddrPortFrom(netip.MustParseAddr("10.78.0.1"), 1000), Dst: netip.AddrPortFrom(netip.MustParseAddr("10.78.0.2"), 2000),
	}
	l := &trainBench{
		a: a, b: b, element: (&flow.Flow{Ends: ends}).Train(packets, size),
		opened: make([]session.Message, max(packets, benchTrains))[:packets], // in cache lines of its own
		merger: offload.NewMerger(true),
	}
	if err := l.parse(); err != nil {
		return nil, err
	}
	l.layout = session.NewLayout(packets, l.train.SegmentLen(), l.train.LastLen(), mtu)
	for range benchTrains {
		l.sealed = append(l.sealed, make([]byte, l.layout.Size()))
	}
	return l, nil
}

func (l *trainBench) parse() error {
	var h offload.VnetHdr
	h.Decode(l.element)
	if r := l.train.Parse(h, l.element[offload.VnetHdrLen:]); r != drop.None {
		return fmt.Errorf("parsing the model train: %s", r)
	}
	return nil
}

func (l *trainBench) split(i int) {
	_ = l.parse() // newTrainBench has parsed it without an error
	l.train.Split(l.sealed[i], l.layout.Stride(), wire.DataHeaderLen, 0, l.layout.Segments)
}

func (l *trainBench) seal(i int) {
	counter, _ := l.a.Reserve(l.layout.Segments)
	l.a.SealTrain(&l.scratch, l.sealed[i], l.layout, counter)
}

func (l *trainBench) open(i int) int {
	n, lost := l.b.OpenTrain(&l.scratch, 0, l.sealed[i], l.layout.Stride(), l.opened), 0
	for _, m := range l.opened[:n] {
		if m.Drop != drop.None {
			lost++
		}
	}
	return lost
}

func (l *trainBench) merge(i int) {
	for k := range l.layout.Segments {
		at := k*l.layout.Stride() + wire.DataHeaderLen
		n := l.train.SegmentLen()
		if k == l.layout.Segments-1 {
			n = l.train.LastLen()
		}
		l.merger.Add(l.sealed[i][at : at+n])
	}
	_, _ = l.merger.Flush(discard{}) // discard returns no error
}

type discard struct{}

// WriteTrain implements offload.Sink.
func (discard) WriteTrain([][]byte) error { return nil }

// trainTimes is the time of each stage per train, in ns.
type trainTimes struct{ split, seal, open, merge float64 }

// time processes all trains repeatedly, and returns the median time of each stage.
func (l *trainBench) time(rounds int) (trainTimes, error) {
	var all [4][]float64
	for range rounds {
		lost := 0
		for stage, do := range []func(i int){l.split, l.seal, func(i int) { lost += l.open(i) }, l.merge} {
			begin := time.Now()
			for i := range l.sealed {
				do(i)
			}
			all[stage] = append(all[stage], float64(time.Since(begin))/benchTrains)
		}
		if lost > 0 {
			return trainTimes{}, fmt.Errorf("%d messages could not be opened", lost)
		}
	}
	return trainTimes{median(all[0]), median(all[1]), median(all[2]), median(all[3])}, nil
}

// median of at least one value.
func median(x []float64) float64 { return result.Median(x) }
