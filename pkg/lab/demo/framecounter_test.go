// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/binary"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
)

// udpFrame returns an Ethernet frame with a UDP datagram. The UDP length n may be greater than the captured payload.
func udpFrame(v6 bool, src, dst uint16, n int, payload []byte) []byte {
	udp := make([]byte, 8, 8+len(payload))
	binary.BigEndian.PutUint16(udp, src)
	binary.BigEndian.PutUint16(udp[2:], dst)
	binary.BigEndian.PutUint16(udp[4:], uint16(8+n))
	udp = append(udp, payload...)
	if v6 {
		return ipv6Frame(ipUDP, udp)
	}
	frame := make([]byte, etherLen+20)
	binary.BigEndian.PutUint16(frame[12:], etherIPv4)
	frame[etherLen], frame[etherLen+9] = 0x45, ipUDP
	return append(frame, udp...)
}

func ipv6Frame(next byte, rest []byte) []byte {
	frame := make([]byte, etherLen+40)
	binary.BigEndian.PutUint16(frame[12:], etherIPv6)
	frame[etherLen], frame[etherLen+6] = 0x60, next
	return append(frame, rest...)
}

func icmpFrame(kind, code byte, rest []byte) []byte {
	frame := make([]byte, etherLen+20+8)
	binary.BigEndian.PutUint16(frame[12:], etherIPv4)
	frame[etherLen], frame[etherLen+9] = 0x45, ipICMP
	frame[etherLen+20], frame[etherLen+21] = kind, code
	return append(frame, rest...)
}

func arpFrame() []byte {
	frame := make([]byte, 42)
	binary.BigEndian.PutUint16(frame[12:], etherARP)
	return frame
}

func wgMessage(kind byte, n int) []byte {
	m := make([]byte, n)
	m[0] = kind
	return m
}

func changed(frame []byte, at int, to byte) []byte {
	frame[at] = to
	return frame
}

func TestFramesAreClassified(t *testing.T) {
	data := wgMessage(4, 100)
	for _, c := range []struct {
		name  string
		frame []byte
		want  frameKind
	}{
		{"data", udpFrame(false, tunnelPort, tunnelPort, 100, data), frameData},
		{"data over IPv6", udpFrame(true, tunnelPort, tunnelPort, 100, data), frameData},
		{"data from a lane port", udpFrame(false, 40001, tunnelPort, 100, data), frameData},
		{"data of which a beginning is captured", udpFrame(false, tunnelPort, tunnelPort, 60000, data), frameData},
		{"a keepalive", udpFrame(false, tunnelPort, tunnelPort, 32, wgMessage(4, 32)), frameData},
		{"an initiation", udpFrame(false, tunnelPort, tunnelPort, 148, wgMessage(1, 148)), frameHandshake},
		{"a response", udpFrame(true, tunnelPort, tunnelPort, 92, wgMessage(2, 92)), frameHandshake},
		{"a cookie reply", udpFrame(false, tunnelPort, tunnelPort, 64, wgMessage(3, 64)), frameHandshake},
		{"a handshake that was refused", icmpFrame(3, 3, udpFrame(false, tunnelPort, tunnelPort, 148, nil)[etherLen:]), frameRefused},
		{"ARP", arpFrame(), frameNeighbour},
		{"neighbour solicitation", ipv6Frame(ipICMPv6, []byte{135, 0, 0, 0}), frameNeighbour},
		{"listener report", ipv6Frame(ipHopByHop, append([]byte{ipICMPv6, 0, 5, 2, 0, 0, 0, 0}, 143)), frameNeighbour},

		{"another ICMP error", icmpFrame(3, 1, udpFrame(false, tunnelPort, tunnelPort, 148, nil)[etherLen:]), frameForeign},
		{"data that was refused", icmpFrame(3, 3, udpFrame(false, tunnelPort, tunnelPort, 32, nil)[etherLen:]), frameForeign},
		{"a refusal by another port", icmpFrame(3, 3, udpFrame(false, tunnelPort, 40001, 148, nil)[etherLen:]), frameForeign},
		{"a refusal cut short", icmpFrame(3, 3, udpFrame(false, tunnelPort, tunnelPort, 148, nil)[etherLen:etherLen+27]), frameForeign},
		{"a ping", icmpFrame(8, 0, make([]byte, 56)), frameForeign},
		{"an initiation from a lane port", udpFrame(false, 40001, tunnelPort, 148, wgMessage(1, 148)), frameForeign},
		{"data to a lane port", udpFrame(false, tunnelPort, 40001, 100, data), frameForeign},
		{"data between other ports", udpFrame(false, 1000, 2000, 100, data), frameForeign},
		{"data that is too short", udpFrame(false, tunnelPort, tunnelPort, 31, wgMessage(4, 31)), frameForeign},
		{"an initiation of a wrong length", udpFrame(false, tunnelPort, tunnelPort, 149, wgMessage(1, 149)), frameForeign},
		{"an unknown type", udpFrame(false, tunnelPort, tunnelPort, 100, wgMessage(5, 100)), frameForeign},
		{"reserved bits set", udpFrame(false, tunnelPort, tunnelPort, 100, changed(wgMessage(4, 100), 2, 1)), frameForeign},
		{"an IPv4 fragment", changed(udpFrame(false, tunnelPort, tunnelPort, 100, data), etherLen+6, 0x20), frameForeign},
		{"a later fragment", changed(udpFrame(false, tunnelPort, tunnelPort, 100, data), etherLen+7, 5), frameForeign},
		{"TCP", changed(udpFrame(false, tunnelPort, tunnelPort, 100, data), etherLen+9, 6), frameForeign},
		{"TCP over IPv6", ipv6Frame(6, make([]byte, 40)), frameForeign},
		{"a ping over IPv6", ipv6Frame(ipICMPv6, []byte{128, 0, 0, 0}), frameForeign},
		{"a bad IPv4 header length", changed(udpFrame(false, tunnelPort, tunnelPort, 100, data), etherLen, 0x42), frameForeign},
		{"VLAN", changed(changed(arpFrame(), 12, 0x81), 13, 0), frameForeign},
		{"nothing", nil, frameForeign},
	} {
		if got, _ := classify(c.frame); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

func FuzzClassify(f *testing.F) {
	f.Add(udpFrame(false, tunnelPort, tunnelPort, 100, wgMessage(4, 100)))
	f.Add(udpFrame(true, tunnelPort, tunnelPort, 148, wgMessage(1, 148)))
	f.Add(ipv6Frame(ipHopByHop, []byte{ipICMPv6, 0, 5, 2, 0, 0, 0, 0, 143}))
	f.Add(arpFrame())
	f.Fuzz(func(t *testing.T, frame []byte) {
		kind, _ := classify(frame)
		if (kind == frameData || kind == frameHandshake) && len(frame) < etherLen+20+8+wgHeaderLen {
			t.Errorf("%d bytes taken for a WireGuard message", len(frame))
		}
	})
}

func TestFrameCounterCountsPlaintextAndForeignFrames(t *testing.T) {
	w := newFrameCounter()
	take := func(frame []byte) { w.count(netlab.Packet{Data: frame, Len: len(frame), Outgoing: true}) }
	take(udpFrame(false, tunnelPort, tunnelPort, 100, wgMessage(4, 100)))
	take(udpFrame(false, tunnelPort, tunnelPort, 148, wgMessage(1, 148)))
	take(arpFrame())
	if got := w.result(); got.Data != 1 || got.Handshake != 1 || got.Neighbour != 1 || got.Foreign+got.Plaintext != 0 {
		t.Errorf("got %+v", got)
	}
	for range 5 {
		take(udpFrame(true, 7, 7, 100, append(make([]byte, 70), traffic.Marker...)))
	}
	// A message with WireGuard's header and a plaintext payload.
	take(udpFrame(true, tunnelPort, tunnelPort, 100, append(wgMessage(4, 90), traffic.Marker...)))
	if got := w.result(); got.Foreign != 5 || got.Plaintext != 6 || got.Data != 2 || len(got.Examples) != maxExamples {
		t.Errorf("got %+v, want Foreign 5, Plaintext 6, Data 2, len(Examples) %v", got, maxExamples)
	}
	select {
	case <-w.plaintext:
	default:
		t.Error("plaintext was not announced")
	}
	w.reset()
	if got := w.result(); got.seen() != 0 || got.Plaintext != 0 {
		t.Errorf("after reset: %+v", got)
	}
}

func TestFrameCounterCountsDataSourcePorts(t *testing.T) {
	w := newFrameCounter()
	take := func(port uint16, n int, outgoing bool) {
		for range n {
			frame := udpFrame(false, port, tunnelPort, 100, wgMessage(4, 100))
			w.count(netlab.Packet{Data: frame, Len: len(frame), Outgoing: outgoing})
		}
	}
	take(tunnelPort, 10, true)
	if got := w.sourcePorts(); got != 1 {
		t.Errorf("got %d source ports, want 1", got)
	}
	w.resetPorts()
	take(61000, 1000, true)
	take(61001, 1000, true)
	take(tunnelPort, 1, true)
	take(61002, 1000, false)
	if got := w.sourcePorts(); got != 2 {
		t.Errorf("got %d source ports, want 2: neither the hello's nor those of the other host", got)
	}
}
