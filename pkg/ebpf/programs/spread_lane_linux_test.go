// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

// laneModel runs the program and the Go model of package spread side by side. The model gets the time that the program read.
type laneModel struct {
	t     *testing.T
	s     *Spread
	flows *spread.Flows
	loads map[string]*spread.Loads
	lanes int
	now   int64 // of the last run, nanoseconds
}

// first is the peers' first lane. It is not 0, so that a missing value is noticed.
const first = 77

func newLaneModel(t *testing.T, lanes int, gap time.Duration, peers ...string) *laneModel {
	t.Helper()
	s := loadSpreadFor(t, SpreadOptions{L2: true})
	expect.NoError(t, s.SetGap(gap))
	expect.NoError(t, s.SetTunnel(Tunnel{Port: 51820, Lanes: ports(61000, 61999), MarkMask: 0xffffffff}))
	c := &laneModel{t: t, s: s, flows: spread.NewFlows(16, gap), loads: map[string]*spread.Loads{}, lanes: lanes}
	for _, endpoint := range peers {
		p := Peer{Tunnel: 51820, Endpoint: netip.MustParseAddrPort(endpoint), First: first}
		for i := range lanes {
			p.Lanes = append(p.Lanes, uint16(61000+7*i))
		}
		expect.NoError(t, s.SetPeer(p))
		c.loads[endpoint] = spread.NewLoads(lanes, first)
	}
	return c
}

// step sends a message of a flow. It fails unless C and Go choose the same lane.
func (m *laneModel) step(peer string, mark uint32, size int) int {
	m.t.Helper()
	us := us4
	if netip.MustParseAddrPort(peer).Addr().Is6() {
		us = us6
	}
	in := data(us, peer).with(func(d *datagram) { d.payload = message(4, size) }).bytes()
	out, _, refused := runTC(m.t, m.s.Egress(), in, skb{skbMark: mark})
	if refused {
		m.t.Fatal("the kernel rejects the packet")
	}
	flow := markFlow(mark, 0xffffffff)
	var word uint64
	expect.NoError(m.t, m.s.maps.Flows.Lookup(flow>>16, &word))
	m.now = int64(word >> 8 << tickShift)
	want := m.flows.Choose(m.loads[peer], flow, m.now, len(in))
	got := int(sourcePort(out)-61000) / 7
	if got != want || int(word&0xff) != want || sourcePort(out) != uint16(61000+7*got) {
		m.t.Fatalf("flow %#x: port %d, lane %d remembered, want lane %d", flow, sourcePort(out), word&0xff, want)
	}
	return got
}

// checkLoads fails unless C and Go have the same loads.
func (m *laneModel) checkLoads() {
	m.t.Helper()
	for endpoint, loads := range m.loads {
		var peer spreadPeer
		key := peerKey(51820, netip.MustParseAddrPort(endpoint))
		expect.NoError(m.t, m.s.maps.Peers.Lookup(&key, &peer))
		for lane := range m.lanes {
			word := peer.Loads[lane]
			age := (uint64(m.now>>27) - word>>40) & 0xffffff
			got := uint64(0)
			if age < 64 {
				got = word & (1<<40 - 1) >> age
			}
			if want := loads.Bytes(lane, m.now); got != want {
				m.t.Errorf("%s, lane %d: load %d, want %d", endpoint, lane, got, want)
			}
		}
	}
}

func TestLaneChoiceMatchesGoModel(t *testing.T) {
	for _, lanes := range []int{1, 2, 3, 16, 63, 64} {
		for _, gap := range []time.Duration{time.Microsecond, 300 * time.Microsecond, time.Hour} {
			c := newLaneModel(t, lanes, gap, them4, them6)
			r := rand.New(rand.NewPCG(uint64(lanes), uint64(gap)))
			for range 2000 {
				// Some marks share an entry of the flow table, also across peers.
				mark, size := uint32(r.IntN(100))*0x01000193, 33+r.IntN(1400)
				c.step([]string{them4, them6}[r.IntN(2)], mark, size)
			}
			c.checkLoads()
			c.checkFlowCounts(gap)
		}
	}
}

// checkFlowCounts checks the number of lane choices, for gaps that determine it.
func (m *laneModel) checkFlowCounts(gap time.Duration) {
	m.t.Helper()
	got := counted(m.t, m.s, Counters{})
	if got[EventSpread] != 2000 || got[EventFlowNew] > 100 || got[EventFlowNew] < 50 {
		m.t.Errorf("gap %v: counted %v", gap, got)
	}
	if gap == time.Hour && got[EventFlowReassigned] != 0 {
		m.t.Errorf("gap %v: counted %v", gap, got)
	}
}

// Loads of different age, up to an epoch difference beyond 64, decay as in the Go model.
func TestLoadDecayMatchesGoModel(t *testing.T) {
	for _, epochs := range []int64{0, 1, 2, 7, 30, 39, 40, 63, 64, 65, 1 << 20} {
		c := newLaneModel(t, 5, time.Microsecond, them4)
		c.step(them4, 1, 100)
		r := rand.New(rand.NewPCG(uint64(epochs), 0))
		then := c.now - epochs<<27
		others := spread.NewFlows(16, 0)
		for range 20 {
			others.Choose(c.loads[them4], r.Uint32(), then, r.IntN(1<<30)<<r.IntN(9))
		}
		var peer spreadPeer
		key := peerKey(51820, netip.MustParseAddrPort(them4))
		expect.NoError(t, c.s.maps.Peers.Lookup(&key, &peer))
		for lane := range c.lanes {
			peer.Loads[lane] = uint64(then>>27)&0xffffff<<40 | c.loads[them4].Bytes(lane, then)
		}
		expect.NoError(t, c.s.maps.Peers.Put(&key, &peer))
		for i := range uint32(20) {
			c.step(them4, 1+i*0x01000193, 1000)
		}
		c.checkLoads()
	}
}

func TestSixteenFlowsUseSixteenLanes(t *testing.T) {
	c := newLaneModel(t, 16, time.Hour, them4)
	taken := map[int]int{}
	for i := range uint32(160) {
		taken[c.step(them4, 1+i%16, 1400)]++
	}
	for lane := range 16 {
		if taken[lane] != 10 {
			t.Fatalf("messages per lane: %v", taken)
		}
	}
}

// A mask of few bits still selects different lanes.
func TestFewMarkBitsSelectAllLanes(t *testing.T) {
	for _, shift := range []int{0, 8, 16, 24, 28} {
		seen := map[uint32]bool{}
		for i := range uint32(16) {
			seen[markFlow(i<<shift, 15<<shift)>>16] = true
		}
		if len(seen) != 16 {
			t.Errorf("4 bits at %d: got %d entries, want 16", shift, len(seen))
		}
	}
}

// With all entries of the table in use, each flow keeps its lane.
func TestFullFlowTableKeepsFlowsOnLanes(t *testing.T) {
	s := newSpread(t, SpreadOptions{L2: true})
	expect.NoError(t, s.SetGap(time.Hour))
	expect.NoError(t, s.SetTunnel(Tunnel{Port: 51820, Lanes: ports(61000, 61999), MarkMask: 0xffff0000}))
	var lanes []uint16
	for i := range uint16(64) {
		lanes = append(lanes, 61000+i)
	}
	expect.NoError(t, s.SetPeer(Peer{Tunnel: 51820, Endpoint: netip.MustParseAddrPort(them4), Lanes: lanes}))
	in := data(us4, them4).bytes()
	first := make([]uint16, 1<<16)
	for round := range 2 {
		for i := range uint32(1 << 16) {
			out, _, _ := runTC(t, s.Egress(), in, skb{skbMark: i << 16})
			switch port := sourcePort(out); {
			case round == 0:
				first[i] = port
			case port != first[i]:
				t.Fatalf("flow %d: port %d, then %d", i, first[i], port)
			}
		}
	}
	got := counted(t, s, Counters{})
	if got[EventSpread] != 1<<17 || got[EventFlowNew] != 1<<16 || got[EventFlowReassigned] != 0 {
		t.Errorf("unexpected counters %v", got)
	}
}

// A lane of a flow entry beyond the peer's present lanes wraps around.
func TestLaneBeyondPeerLanesWraps(t *testing.T) {
	s := newSpread(t, SpreadOptions{L2: true})
	expect.NoError(t, s.SetGap(time.Hour))
	expect.NoError(t, s.SetTunnel(Tunnel{Port: 51820, Lanes: ports(61000, 61999), MarkMask: 0xffff0000}))
	expect.NoError(t, s.SetPeer(Peer{Tunnel: 51820, Endpoint: netip.MustParseAddrPort(them4), Lanes: []uint16{61001, 61002, 61003}}))
	in := data(us4, them4).bytes()
	runTC(t, s.Egress(), in, skb{skbMark: 1 << 16})
	key, word := markFlow(1<<16, 0xffff0000)>>16, uint64(0)
	expect.NoError(t, s.maps.Flows.Lookup(key, &word))
	expect.NoError(t, s.maps.Flows.Put(key, word|0xff))
	out, _, _ := runTC(t, s.Egress(), in, skb{skbMark: 1 << 16})
	if got, want := sourcePort(out), uint16(61001+255%3); got != want {
		t.Errorf("port %d, want %d", got, want)
	}
}
