// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// flowFrom returns a flow to the rig's peer from a port.
func flowFrom(port uint16) *flow.Flow {
	ends := out4
	ends.Src = netip.AddrPortFrom(out4.Src.Addr(), port)
	return &flow.Flow{Ends: ends, ID: uint32(port)}
}

// wait queues trains in the TUN.
func (r *rig) wait(trains ...[]byte) {
	r.tb.Helper()
	for _, e := range trains {
		if err := r.tun.Inject(0, e); err != nil {
			r.tb.Fatal(err)
		}
	}
}

// sourcePort returns the source port of an IPv4 packet without options.
func sourcePort(ip []byte) uint16 { return uint16(ip[20])<<8 | uint16(ip[21]) }

func TestSparseFlowsPassBulkInTUNQueue(t *testing.T) {
	r := newRig(t)
	bulk, sparse := flowFrom(1), flowFrom(2)
	r.carry(bulk.Train(40, 1000), sparse.Next(100), bulk.Train(40, 1000))
	r.sent()
	for range 10 {
		r.wait(bulk.Train(40, 1000))
	}
	r.carry(sparse.Next(100))
	sent := unpadded(t, r.sent())
	if len(sent) != 10*40+1 {
		t.Fatalf("got %d packets, want 401", len(sent))
	}
	if at := slices.IndexFunc(sent, func(p []byte) bool { return sourcePort(p) == 2 }); at > 40 {
		t.Errorf("%d packets were sent before that of the sparse flow, want at most a train of 40", at)
	}
}

func TestBulkAloneIsNotReadAhead(t *testing.T) {
	r := newRig(t)
	bulk, other := flowFrom(1), flowFrom(2)
	for range 5 {
		r.wait(bulk.Train(40, 1000), other.Train(40, 1000), bulk.Next(100)) // bulk flows have small trains, too
	}
	for n := r.tx.reader.tryRead(r.tx.txBatch); n > 0; n = r.tx.reader.tryRead(r.tx.txBatch) {
		if r.tx.reader.waits() {
			t.Fatal("trains were read ahead")
		}
		r.tx.sendBatch(n)
	}
}

func TestReadingAheadEndsWithoutSparseFlows(t *testing.T) {
	r := newRig(t)
	bulk, sparse := flowFrom(1), flowFrom(2)
	r.carry(bulk.Train(40, 1000), sparse.Next(100), bulk.Train(40, 1000))
	r.now += readAheadHold
	r.wait(bulk.Train(40, 1000), bulk.Train(40, 1000))
	if n := r.tx.reader.tryRead(r.tx.txBatch); n != 1 || r.tx.reader.waits() {
		t.Errorf("got %d trains and reading ahead %v, want 1 and false", n, r.tx.reader.waits())
	}
}

// TestReadingAheadKeepsOrderWithinFlows compares each flow of any mix with what was sent. More trains wait than are read ahead.
func TestReadingAheadKeepsOrderWithinFlows(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	r := newRig(t)
	flows := make([]*flow.Flow, 40)
	for i := range flows {
		flows[i] = flowFrom(uint16(i))
	}
	for range 20 {
		r.now += int64(time.Millisecond)
		want := map[uint16][][]byte{}
		for range 1 + rng.IntN(5*readAheadTrains) {
			i := rng.IntN(len(flows))
			train := flows[i].Next(8 + rng.IntN(1000))
			if i%4 == 0 {
				train = flows[i].Train(2+rng.IntN(40), 1000)
			}
			want[uint16(i)] = append(want[uint16(i)], packetsOf(t, train)...)
			r.wait(train)
		}
		r.carry()
		got := map[uint16][][]byte{}
		for _, p := range unpadded(t, r.sent()) {
			got[sourcePort(p)] = append(got[sourcePort(p)], p)
		}
		for port := range want {
			samePackets(t, got[port], want[port])
		}
	}
	if n := r.allDrops(); n != 0 {
		t.Errorf("got %d drops, want 0", n)
	}
	if r.tx.reader.queue == nil {
		t.Error("nothing was read ahead")
	}
}

func TestReadingAheadAllocatesNothing(t *testing.T) {
	r := newRig(t)
	r.conn.silent = true
	bulk, sparse := flowFrom(1), flowFrom(2)
	train, single := bulk.Train(40, 1000), sparse.Next(100)
	pass := func() {
		r.wait(train, train, train, single)
		r.carry(train)
		if r.tx.reader.queue == nil {
			t.Fatal("nothing was read ahead")
		}
	}
	r.carry(train, single, train)
	pass()
	if n := testing.AllocsPerRun(20, pass); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// TestMalformedTrainsAreReadAhead has trains without a whole header among others.
func TestMalformedTrainsAreReadAhead(t *testing.T) {
	r := newRig(t)
	bulk, sparse := flowFrom(1), flowFrom(2)
	r.carry(bulk.Train(40, 1000), sparse.Next(100), bulk.Train(40, 1000))
	r.sent()
	r.carry(bulk.Train(40, 1000), []byte{1}, make([]byte, packet.IPv4HeaderLen), bulk.Train(40, 1000))
	if n := len(r.sent()); n != 80 {
		t.Errorf("got %d packets, want 80", n)
	}
	if n := r.allDrops(); n != 2 {
		t.Errorf("got %d drops, want 2", n)
	}
}
