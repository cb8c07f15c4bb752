// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"net/netip"
	"runtime"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// implementation is a WireGuard implementation in a configuration to compare.
type implementation struct {
	name       string
	start      func(testing.TB, *memoryNet, endConfig)
	lanes      func() int
	vnetHeader bool // its packets have a virtio-net header
	trains     bool // it accepts trains and coalesced datagrams
}

func one() int { return 1 }

func all() int { return runtime.GOMAXPROCS(0) }

var implementations = []implementation{
	{"ropewalk", startRopewalk, all, true, true},
	{"ropewalk-singly", startRopewalk, all, true, false},
	{"wireguard-go", startWireGuardGo, one, false, false},
}

// shape describes the traffic.
type shape struct {
	size   int // bytes of a packet
	train  int // packets per train; 1 for single packets
	trains int // trains per iteration: so many that the start and the end of a round hardly count
}

// window is the largest number of packets in flight, since TCP and a TUN's queue bound it too. The queues of wireguard-go would
// hold a hundred thousand.
const window = 1024

// minBatch is the smallest number of packets that enter at the same time.
const minBatch = 256

var shapes = []shape{{1440, 44, 128}, {64, 1, 8192}}

func (s shape) packets() int { return s.train * s.trains }

// differs reports whether an implementation differs from the previous one for this shape.
func (i implementation) differs(s shape) bool { return i.trains || s.train > 1 || !i.vnetHeader }

// flows is the number of flows, all between the same two hosts.
const flows = 8

// tcpHeaders are the headers of a packet of a flow.Flow.
const tcpHeaders = packet.IPv4HeaderLen + packet.TCPHeaderLen

// trainsOf returns one train per flow, from the host behind one end to the host behind the other.
func trainsOf(tb testing.TB, from, to endConfig, s shape) (trains [flows]train) {
	tb.Helper()
	for i := range trains {
		f := flow.Flow{ID: uint32(i), Ends: flow.Ends{
			Src: netip.AddrPortFrom(to.allowed[0].Addr(), uint16(1000+i)), Dst: netip.AddrPortFrom(from.allowed[0].Addr(), 2000),
		}}
		trains[i].element = f.Train(s.train, s.size-tcpHeaders)
		packets, err := flow.Packets(trains[i].element)
		if err != nil {
			tb.Fatal(err)
		}
		trains[i].packets = packets
	}
	return trains
}

// train is a train, as one element and as packets.
type train struct {
	element []byte
	packets [][]byte
}

// elements returns what the implementation reads from the TUN for a train.
func (i implementation) elements(t train) (elements []element) {
	if i.trains && len(t.packets) > 1 {
		return []element{{data: t.element}}
	}
	for _, p := range t.packets {
		if i.vnetHeader {
			p = flow.WithVnetHeader(p)
		}
		elements = append(elements, element{data: p})
	}
	return elements
}

// messages returns what the implementation receives from the network for a run of messages.
func (i implementation) messages(run []byte, stride int) (messages []element) {
	if i.trains {
		return []element{{data: run, segSize: stride}}
	}
	for len(run) > 0 {
		messages = append(messages, element{data: run[:stride], segSize: stride})
		run = run[stride:]
	}
	return messages
}
