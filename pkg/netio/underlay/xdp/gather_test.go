// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

func elements(n, size int) []underlay.Datagrams {
	rx := make([]underlay.Datagrams, n)
	for i := range rx {
		rx[i] = underlay.Datagrams{Buf: make([]byte, size), N: 7, SegSize: 9, Truncated: true, ECN: packet.CE}
	}
	return rx
}

func flowOf(port uint16, ecn packet.ECN) flow {
	return flow{src: [16]byte{192, 0, 2, 1}, port: port, ecn: ecn}
}

// shape is an element: its port, its number of bytes, and the size of its datagrams.
type shape struct{ port, n, size int }

func TestAdjacentDatagramsOfOneFlowShareElement(t *testing.T) {
	type in struct {
		port, size int
		ecn        packet.ECN
	}
	many := func(n int, i in) []in { return slices.Repeat([]in{i}, n) }
	for _, c := range []struct {
		name string
		in   []in
		want []shape
	}{
		{"one", []in{{1, 100, 0}}, []shape{{1, 100, 100}}},
		{"a train", many(3, in{1, 100, 0}), []shape{{1, 300, 100}}},
		{"a shorter last", append(many(3, in{1, 100, 0}), in{1, 99, 0}), []shape{{1, 399, 100}}},
		{"nothing behind a shorter one", []in{{1, 100, 0}, {1, 50, 0}, {1, 50, 0}, {1, 100, 0}}, []shape{{1, 150, 100}, {1, 50, 50}, {1, 100, 100}}},
		{"a longer one", []in{{1, 100, 0}, {1, 101, 0}}, []shape{{1, 100, 100}, {1, 101, 101}}},
		{"two flows", []in{{1, 100, 0}, {2, 60, 0}, {1, 100, 0}, {2, 60, 0}}, []shape{{1, 200, 100}, {2, 120, 60}}},
		{"marks", []in{{1, 100, 0}, {1, 100, packet.CE}, {1, 100, 0}}, []shape{{1, 200, 100}, {1, 100, 100}}},
		{"empty ones", []in{{1, 0, 0}, {1, 0, 0}, {1, 10, 0}, {1, 0, 0}}, []shape{{1, 0, 0}, {1, 0, 0}, {1, 10, 10}, {1, 0, 0}}},
		{"more than an element holds", many(7, in{1, 200, 0}), []shape{{1, 1000, 200}, {1, 400, 200}}},
		{"more than UDP_GRO joins", many(65, in{1, 10, 0}), []shape{{1, 640, 10}, {1, 10, 10}}},
	} {
		rx := elements(20, 1000)
		var g gatherer
		g.begin(rx, 0)
		for _, i := range c.in {
			f := flowOf(uint16(i.port), i.ecn)
			g.add(&f, make([]byte, i.size))
		}
		var got []shape
		for _, d := range rx[:g.count] {
			got = append(got, shape{int(d.From.Dst.Port()), d.N, d.SegSize})
			if d.Truncated {
				t.Errorf("%s: truncated", c.name)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestOversizeDatagramIsTruncatedAndStaysAlone(t *testing.T) {
	rx := elements(3, 100)
	var g gatherer
	g.begin(rx, 0)
	f := flowOf(1, 0)
	g.add(&f, make([]byte, 101))
	g.add(&f, make([]byte, 40))
	if g.count != 2 || !rx[0].Truncated || rx[0].N != 100 || rx[1].Truncated || rx[1].N != 40 || g.room() != 1 {
		t.Errorf("%d elements: %+v", g.count, rx[:g.count])
	}
}

// TestGatheredFlowsStayInOrder gathers random datagrams of more flows than maxOpenElements, and compares each flow with
// a list.
func TestGatheredFlowsStayInOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		flows := 1 + r.IntN(2*maxOpenElements)
		want, got := map[uint16][][]byte{}, map[uint16][][]byte{}
		rx := elements(64, 1500)
		var g gatherer
		g.begin(rx, 0)
		for number := uint32(0); g.room() > 0 && number < 500; number++ {
			f := flowOf(uint16(r.IntN(flows)), 0)
			payload := make([]byte, []int{0, 8, 60, 100, 100, 100}[r.IntN(6)])
			if len(payload) > 0 {
				binary.BigEndian.PutUint32(payload, number)
			}
			want[f.port] = append(want[f.port], payload)
			g.add(&f, payload)
		}
		for i := range rx[:g.count] {
			port := rx[i].From.Dst.Port()
			got[port] = append(got[port], underlaytest.Flatten(&rx[i])...)
		}
		for port := range want {
			if !slices.EqualFunc(want[port], got[port], bytes.Equal) {
				t.Fatalf("flow %d: got %d datagrams, want %d", port, len(got[port]), len(want[port]))
			}
		}
	}
}

func TestGathererDoesNotAllocate(t *testing.T) {
	rx, frame := elements(64, 65535), frameOf(way6, make([]byte, 1400), 0)
	var g gatherer
	if n := testing.AllocsPerRun(100, func() {
		g.begin(rx, 1)
		for range 64 {
			f, payload, _ := parseFrame(frame, testPort)
			g.add(&f, payload)
		}
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
