// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

// Endpoints of the tests' tunnel, with the listen ports.
const (
	us4, them4 = "198.51.100.1:51820", "203.0.113.2:51821"
	us6, them6 = "[2001:db8:1::1]:51820", "[2001:db8:2::2]:51821"

	lane    = 61005 // a lane port of this host
	gathers = 62005 // a lane port of the peer
)

// from returns the endpoint with another port.
func from(endpoint string, port uint16) string {
	return netip.AddrPortFrom(netip.MustParseAddrPort(endpoint).Addr(), port).String()
}

func between(first, last uint16) spread.Ports { return spread.Ports{First: first, Last: last} }

// ports returns the ports of a range.
func ports(first, last uint16) (all []uint16) {
	for p := int(first); p <= int(last); p++ {
		all = append(all, uint16(p))
	}
	return all
}

func loadSpreadFor(t testing.TB, o SpreadOptions) *Spread {
	t.Helper()
	s, err := LoadSpread(o)
	skipUnprivileged(t, err)
	if err != nil {
		t.Fatalf("got error %+v, want none", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	expect.NoError(t, s.SetAddresses(ourAddresses))
	return s
}

// ourAddresses are those of us4 and us6, and the addresses of the other hosts of the tests with several.
var ourAddresses = addresses("198.51.100.1", "2001:db8:1::1", "198.51.100.9", "203.0.113.2", "2001:db8:2::2")

func addresses(all ...string) (parsed []netip.Addr) {
	for _, a := range all {
		parsed = append(parsed, netip.MustParseAddr(a))
	}
	return parsed
}

// newSpread returns the programs with the tests' tunnel and a peer at each of them4 and them6, with one lane.
func newSpread(t testing.TB, o SpreadOptions) *Spread {
	t.Helper()
	s := loadSpreadFor(t, o)
	expect.NoError(t, s.SetTunnel(Tunnel{Port: 51820, Lanes: ports(61000, 61999)}))
	for _, endpoint := range []string{them4, them6} {
		expect.NoError(t, s.SetPeer(Peer{
			Tunnel: 51820, Endpoint: netip.MustParseAddrPort(endpoint),
			Lanes: []uint16{lane}, Gather: between(62000, 62999),
		}))
	}
	return s
}

// SetPeer calls SetPeers with one peer.
func (s *State) SetPeer(p Peer) error { return s.SetPeers([]Peer{p}) }

// skb is struct __sk_buff as an array of u32.
type skb [48]uint32

const (
	skbGSOSegs = 164 / 4
	skbGSOSize = 176 / 4
)

func train(segs, size uint32) (c skb) {
	c[skbGSOSegs], c[skbGSOSize] = segs, size
	return c
}

// Verdicts that let a packet continue.
const (
	tcxNext = 0xffffffff
	xdpPass = 2
)

// runTC runs a program and returns the packet and its context. refused is set if the kernel does not accept the packet for
// BPF_PROG_TEST_RUN.
func runTC(t testing.TB, p *ebpf.Program, in []byte, c skb) (out []byte, after skb, refused bool) {
	t.Helper()
	out = make([]byte, len(in)+256)
	o := &ebpf.RunOptions{Data: in, DataOut: out, Context: c, ContextOut: &after}
	verdict, err := p.Run(o)
	if err != nil {
		return nil, after, true
	}
	if verdict != tcxNext {
		t.Errorf("got verdict %#x, want %#x", verdict, tcxNext)
	}
	return o.DataOut, after, false
}

func runXDP(t testing.TB, p *ebpf.Program, in []byte) (out []byte, refused bool) {
	t.Helper()
	o := &ebpf.RunOptions{Data: in, DataOut: make([]byte, len(in)+256)}
	verdict, err := p.Run(o)
	if err != nil {
		return nil, true
	}
	if verdict != xdpPass {
		t.Errorf("got verdict %#x, want %#x", verdict, xdpPass)
	}
	return o.DataOut, false
}

func counters(t testing.TB, s *Spread) Counters {
	t.Helper()
	c, err := s.Counters()
	expect.NoError(t, err)
	return c
}

// counted returns the counters' differences to before.
func counted(t testing.TB, s *Spread, before Counters) map[Event]uint64 {
	t.Helper()
	events := map[Event]uint64{}
	for i, n := range counters(t, s) {
		if n != before[i] {
			events[Event(i)] = n - before[i]
		}
	}
	return events
}

// once returns the counts of events that happen once.
func once(events ...Event) map[Event]uint64 {
	m := map[Event]uint64{}
	for _, e := range events {
		m[e] = 1
	}
	return m
}

// clearFlows clears the flow table.
func clearFlows(t testing.TB, s *Spread) {
	t.Helper()
	keys := make([]uint32, s.maps.Flows.MaxEntries())
	for i := range keys {
		keys[i] = uint32(i)
	}
	_, err := s.maps.Flows.BatchUpdate(keys, make([]uint64, len(keys)), nil)
	expect.NoError(t, err)
}

// sourcePort returns the source port of a packet without VLAN tags or options.
func sourcePort(b []byte) uint16 {
	at := 14 + 20
	if b[14]>>4 == 6 {
		at = 14 + 40
	}
	return binary.BigEndian.Uint16(b[at:])
}
