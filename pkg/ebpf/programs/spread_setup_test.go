// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"encoding/binary"
	"errors"
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
	if refused := (*ebpf.VerifierError)(nil); errors.As(err, &refused) {
		t.Fatalf("got error %v, want none:\n%+v", err, refused)
	}
	expect.NoError(t, err)
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
		s.setOpenPeer(t, Peer{
			Tunnel: 51820, Endpoint: netip.MustParseAddrPort(endpoint),
			Lanes: []uint16{lane}, Gather: between(62000, 62999), ProbeKeys: NewProbeKeys(ourKey, theirKey),
		})
	}
	return s
}

// setOpenPeer sets a peer whose lanes are proved, and need no probe for a long time.
func (s *State) setOpenPeer(t testing.TB, p Peer) {
	t.Helper()
	p.ProbeKeys, p.Proved = NewProbeKeys(ourKey, theirKey), true
	expect.NoError(t, s.SetPeer(p))
	s.changePeer(t, p.Tunnel, p.Endpoint, (*spreadPeer).openLanes)
	if p.Gather != (spread.Ports{}) {
		s.setHeard(t, p, ^uint64(0))
	}
}

// setHeard is as if authentic probes of a peer had come from ports just now, by a mask for each 64.
func (s *State) setHeard(t testing.TB, p Peer, mask uint64) {
	t.Helper()
	s.changeSource(t, p, func(value *spreadSource) {
		value.HeardAt = now(t)
		for i := range value.Heard {
			value.Heard[i] = mask
		}
	})
}

// changeSource changes what the programs know of a peer's ports.
func (s *State) changeSource(t testing.TB, p Peer, f func(value *spreadSource)) {
	t.Helper()
	key, value := sourceKey(p.Tunnel, p.Endpoint.Addr()), spreadSource{}
	expect.NoError(t, s.maps.Sources.Lookup(&key, &value))
	f(&value)
	expect.NoError(t, s.maps.Sources.Put(&key, &value))
}

// openLanes is as if a probe of each lane had been answered now, and no further round began.
func (value *spreadPeer) openLanes() {
	value.Answers, value.Ready, value.RoundAt = 1, 1, 1<<62
	for i := range value.Lane {
		l := &value.Lane[i]
		l.Proof, l.Round = value.Proof, value.Round
	}
}

// changePeer changes what the programs know of a peer.
func (s *State) changePeer(t testing.TB, tunnel uint16, endpoint netip.AddrPort, f func(value *spreadPeer)) {
	t.Helper()
	key, value := peerKey(tunnel, endpoint), spreadPeer{}
	expect.NoError(t, s.maps.Peers.Lookup(&key, &value))
	f(&value)
	expect.NoError(t, s.maps.Peers.Put(&key, &value))
}

// forgetRecentAddresses is the passing of a jiffy.
func (s *State) forgetRecentAddresses(t testing.TB) {
	t.Helper()
	var cpus []spreadCounters
	expect.NoError(t, s.maps.Counters.Lookup(uint32(0), &cpus))
	for i := range cpus {
		cpus[i].Recent, cpus[i].Local = spreadCounters{}.Recent, spreadCounters{}.Local
	}
	expect.NoError(t, s.maps.Counters.Put(uint32(0), cpus))
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
