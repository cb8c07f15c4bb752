// SPDX-License-Identifier: Apache-2.0

package lanetest

import (
	"bytes"
	"net/netip"
	"runtime"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// Batches are the kinds of batches that a lane may process at once.
func Batches(ends flow.Ends) map[string][][]byte {
	f := flow.Flow{Ends: ends}
	var small, mixed [][]byte
	for i := range 100 {
		small = append(small, f.Next(64))
		if i%10 == 0 {
			mixed = append(mixed, f.Train(2+i/10, 200))
		}
		mixed = append(mixed, f.Next(64+i))
	}
	return map[string][][]byte{
		"small packets": small[:100],
		"train":         {f.Train(45, 1380)},
		"mixed":         mixed,
		"tiny segments": {ends.TCPTrain(0, 1, make([]byte, 4000))},
	}
}

// Marked gives an IP packet that ECN field, and IPv4 a right checksum.
func Marked(ip []byte, ecn packet.ECN) []byte {
	if ip[0]>>4 == 6 {
		ip[1] = ip[1]&^0x30 | byte(ecn)<<4
		return ip
	}
	ip[1] = ip[1]&^3 | byte(ecn)
	h := packet.IPv4(ip)
	h.SetChecksum(0)
	h.SetChecksum(packet.Checksum(h[:packet.IPv4HeaderLen]))
	return ip
}

// MarkedElement sets the mark in the packet of a train.
func MarkedElement(element []byte, ecn packet.ECN) []byte {
	Marked(element[offload.VnetHdrLen:], ecn)
	return element
}

// Pad returns b with zeros, or cut, to n bytes.
func Pad(b []byte, n int) []byte { return append(b, make([]byte, max(0, n-len(b)))...)[:n] }

// PacketsOf returns the packets of trains.
func PacketsOf(tb testing.TB, elements ...[]byte) (all [][]byte) {
	tb.Helper()
	for _, e := range elements {
		packets, err := flow.Packets(e)
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, packets...)
	}
	return all
}

// Unpadded cuts plaintexts to the packets in them.
func Unpadded(tb testing.TB, plain [][]byte) (packets [][]byte) {
	tb.Helper()
	for _, p := range plain {
		n, ok := packet.Length(p)
		if !ok {
			tb.Fatalf("plaintext of %d bytes is no packet", len(p))
		}
		packets = append(packets, p[:n])
	}
	return packets
}

// SamePackets fails unless both are the same packets in the same order.
func SamePackets(tb testing.TB, got, want [][]byte) {
	tb.Helper()
	if len(got) != len(want) {
		tb.Fatalf("got %d packets, want %d", len(got), len(want))
	}
	for i := range got {
		if !bytes.Equal(got[i], want[i]) {
			tb.Fatalf("packet %d is\n% x, want\n% x", i, got[i], want[i])
		}
	}
}

// VnetHeader returns a train with the given virtio-net header.
func VnetHeader(h offload.VnetHdr, p []byte) []byte {
	e := flow.WithVnetHeader(p)
	h.Encode(e)
	return e
}

// FromPort is an endpoint of the peer.
func FromPort(port uint16) underlay.Endpoint {
	from := There
	from.Dst = netip.AddrPortFrom(There.Dst.Addr(), port)
	return from
}

// ManyWorkers are more than there are cores.
func ManyWorkers() workpool.Config { return workpool.Config{Workers: 2*runtime.NumCPU() + 1} }

// Offered fails the test unless workers ran jobs.
func Offered(tb testing.TB, s workpool.Stats) {
	tb.Helper()
	if s.Submitted == 0 || s.Done+s.ByLane != s.Submitted {
		tb.Errorf("got %+v", s)
	}
	tb.Logf("%+v", s)
}
