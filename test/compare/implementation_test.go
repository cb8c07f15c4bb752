// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"net/netip"
	"runtime"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// implementation is one that is compared.
type implementation struct {
	name   string
	start  func(testing.TB, *edges, side)
	lanes  func() int
	header bool // its elements bear a virtio-net header
	trains bool // it takes trains, and datagrams that were coalesced
}

func one() int { return 1 }

func all() int { return runtime.GOMAXPROCS(0) }

var implementations = []implementation{
	{"ropewalk", startRopewalk, all, true, true},
	{"ropewalk-singly", startRopewalk, all, true, false},
	{"wireguard-go", startWireGuardGo, one, false, false},
}

// shape is the traffic.
type shape struct {
	size  int // bytes of a packet
	train int // packets of a train; 1 where nobody joins packets
	lap   int // trains that are carried in one iteration: enough that filling and draining a pipeline hardly counts
}

// window is how many packets are under way at most, as TCP and the queue of a TUN bound them: wireguard-go's own queues
// hold a hundred thousand.
const window = 1024

// chunk is how many packets, at least, are given at once.
const chunk = 256

var shapes = []shape{{1440, 44, 128}, {64, 1, 8192}}

func (s shape) packets() int { return s.train * s.lap }

// suits tells whether an implementation differs from the one before it for this shape.
func (i implementation) suits(s shape) bool { return i.trains || s.train > 1 || !i.header }

// flows is how many flows there are, all between the same two hosts.
const flows = 8

// tcpHeaders are the headers of a packet of a flow.Flow.
const tcpHeaders = packet.IPv4HeaderLen + packet.TCPHeaderLen

// trainsOf returns one train of each flow from the host behind one side to that behind the other, as packets.
func trainsOf(tb testing.TB, from, to side, s shape) (trains [flows]train) {
	tb.Helper()
	for i := range trains {
		f := flow.Flow{ID: uint32(i), Ends: flow.Ends{
			Src: netip.AddrPortFrom(to.allowed.Addr(), uint16(1000+i)), Dst: netip.AddrPortFrom(from.allowed.Addr(), 2000),
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

// train is one train, whole and as packets.
type train struct {
	element []byte
	packets [][]byte
}

// elements is what a host sends of a train, in the form in which an implementation reads it.
func (i implementation) elements(t train) (elements []element) {
	if i.trains && len(t.packets) > 1 {
		return []element{{data: t.element}}
	}
	for _, p := range t.packets {
		if i.header {
			p = flow.WithVnetHeader(p)
		}
		elements = append(elements, element{data: p})
	}
	return elements
}

// messages is what the network brings of a run of messages, in the form in which an implementation receives it.
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
