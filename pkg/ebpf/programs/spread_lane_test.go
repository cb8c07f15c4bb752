// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"encoding/binary"
	"errors"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

// laneModel runs the program and the Go model of package spread side by side. The model gets the time that the program read.
type laneModel struct {
	t     *testing.T
	s     *Spread
	flows *spread.Flows
	loads map[string]*spread.Loads
	peers map[string]uint16 // numbers
	lanes int
	hash  *ebpf.Program
	clock *ebpf.Map // of the program
	now   int64     // of the last run, nanoseconds
}

// first is the peers' first lane. It is not 0, so that a missing value is noticed.
const first = 77

func newLaneModel(t *testing.T, lanes int, gap time.Duration, peers ...string) *laneModel {
	t.Helper()
	s := loadSpreadFor(t, SpreadOptions{L2: true})
	expect.NoError(t, s.SetGap(gap))
	expect.NoError(t, s.SetTunnel(Tunnel{Port: 51820, Lanes: ports(61000, 61999)}))
	c := &laneModel{
		t: t, s: s, hash: newHash(t), clock: clockMap(t, s.Egress()), flows: spread.NewFlows(16, gap), loads: map[string]*spread.Loads{}, peers: map[string]uint16{}, lanes: lanes,
	}
	for _, endpoint := range peers {
		p := Peer{Tunnel: 51820, Endpoint: netip.MustParseAddrPort(endpoint), First: first}
		for i := range lanes {
			p.Lanes = append(p.Lanes, uint16(61000+7*i))
		}
		s.setOpenPeer(t, p)
		c.loads[endpoint] = spread.NewLoads(lanes, first)
		s.changePeer(t, 51820, p.Endpoint, func(value *spreadPeer) { c.peers[endpoint] = value.Number })
	}
	return c
}

// newHash returns a program whose result is the packet's hash as the kernel computes it, which spread takes for the flow's.
func newHash(t *testing.T) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.FnGetHashRecalc.Call(), asm.Return()},
	})
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, p.Close()) })
	return p
}

// flowHash returns the hash of a packet. The kernel computes another after each boot.
func flowHash(t *testing.T, p *ebpf.Program, in []byte) uint32 {
	t.Helper()
	hash, err := p.Run(&ebpf.RunOptions{Data: in})
	expect.NoError(t, err)
	return hash
}

// setLabel sets the flow label of an IPv6 packet, from which the kernel computes its hash.
func setLabel(in []byte, label uint32) {
	binary.BigEndian.PutUint32(in[14:], 6<<28|label)
}

// labels returns flow labels of messages to a peer by their entries of the flow table, which are all different.
func (m *laneModel) labels(peer string, n int) map[uint32]uint32 {
	m.t.Helper()
	labels := map[uint32]uint32{}
	in := data(us6, peer).bytes()
	for label := uint32(1); len(labels) < n; label++ {
		setLabel(in, label)
		labels[flowHash(m.t, m.hash, in)>>16] = label
	}
	return labels
}

// step sends a message with a flow label. It fails unless C and Go choose the same lane.
func (m *laneModel) step(peer string, label uint32, size int) int {
	m.t.Helper()
	in := data(us6, peer).with(func(d *datagram) { d.payload = message(4, size) }).bytes()
	setLabel(in, label)
	out, _, refused := runTC(m.t, m.s.Egress(), in, skb{})
	if refused {
		m.t.Fatal("the kernel rejects the packet")
	}
	flow := flowHash(m.t, m.hash, in)
	var clock [2]uint64
	expect.NoError(m.t, m.clock.Lookup(uint32(0), &clock))
	m.now = int64(clock[0])
	want := m.flows.Choose(m.loads[peer], spread.Flow{Peer: m.peers[peer], Hash: flow}, m.now, len(in))
	got := int(sourcePort(out)-61000) / 7
	if got != want || sourcePort(out) != uint16(61000+7*got) {
		m.t.Fatalf("flow %#x: port %d, want lane %d", flow, sourcePort(out), want)
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
			word := peer.Lane[lane].Load
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

// TestLaneChoiceMatchesGoModel has flows to two peers that share entries of the flow table.
func TestLaneChoiceMatchesGoModel(t *testing.T) {
	const them = "[2001:db8:2::3]:51821"
	shared := sharedEntries(newLaneModel(t, 1, time.Hour, them6, them), them6, them)
	for _, lanes := range []int{1, 2, 3, 16, 63, 64} {
		for _, gap := range []time.Duration{time.Microsecond, 300 * time.Microsecond, 10 * time.Millisecond, time.Hour} {
			c := newLaneModel(t, lanes, gap, them6, them)
			r := rand.New(rand.NewPCG(uint64(lanes), uint64(gap)))
			for range 2000 {
				i := r.IntN(2)
				c.step([]string{them6, them}[i], shared[r.IntN(len(shared))][i], 33+r.IntN(1400))
			}
			c.checkLoads()
			c.checkFlowCounts(gap, len(shared))
		}
	}
}

// sharedEntries returns pairs of flow labels. Messages to two peers with the labels of a pair have the same entry of the flow table.
func sharedEntries(m *laneModel, first, second string) (pairs [][2]uint32) {
	m.t.Helper()
	others := m.labels(second, 2000)
	for entry, label := range m.labels(first, 2000) {
		if other, ok := others[entry]; ok {
			pairs = append(pairs, [2]uint32{label, other})
		}
	}
	if len(pairs) < 10 {
		m.t.Fatalf("%d shared entries, want some 60", len(pairs))
	}
	return pairs
}

// checkFlowCounts checks the number of new flows, and that of further lane choices for gaps that determine it.
func (m *laneModel) checkFlowCounts(gap time.Duration, flows int) {
	m.t.Helper()
	got := counted(m.t, m.s, Counters{})
	if got[EventSpread] != 2000 || got[EventFlowNew] != uint64(flows) {
		m.t.Errorf("gap %v: counted %v", gap, got)
	}
	if gap == time.Hour && got[EventFlowReassigned] != 0 {
		m.t.Errorf("gap %v: counted %v", gap, got)
	}
}

// Loads of different age, up to an epoch difference beyond 64, decay as in the Go model.
func TestLoadDecayMatchesGoModel(t *testing.T) {
	for _, epochs := range []int64{0, 1, 2, 7, 30, 39, 40, 63, 64, 65, 1 << 20} {
		c := newLaneModel(t, 5, time.Microsecond, them6)
		c.step(them6, 1, 100)
		r := rand.New(rand.NewPCG(uint64(epochs), 0))
		then := c.now - epochs<<27
		others := spread.NewFlows(16, 0)
		for range 20 {
			others.Choose(c.loads[them6], spread.Flow{Peer: 1, Hash: r.Uint32()}, then, r.IntN(1<<30)<<r.IntN(9))
		}
		var peer spreadPeer
		key := peerKey(51820, netip.MustParseAddrPort(them6))
		expect.NoError(t, c.s.maps.Peers.Lookup(&key, &peer))
		for lane := range c.lanes {
			peer.Lane[lane].Load = uint64(then>>27)&0xffffff<<40 | c.loads[them6].Bytes(lane, then)
		}
		expect.NoError(t, c.s.maps.Peers.Put(&key, &peer))
		for i := range uint32(20) {
			c.step(them6, 1+i, 1000)
		}
		c.checkLoads()
	}
}

func TestSixteenFlowsUseSixteenLanes(t *testing.T) {
	c := newLaneModel(t, 16, time.Hour, them6)
	taken := map[int]int{}
	labels := slices.Collect(maps.Values(c.labels(them6, 16)))
	for i := range 160 {
		taken[c.step(them6, labels[i%16], 1400)]++
	}
	for lane := range 16 {
		if taken[lane] != 10 {
			t.Fatalf("messages per lane: %v", taken)
		}
	}
}

// All entries of the table are in use by flows to the same peer with tag 0, on another lane than that of their slot. The flows with that tag keep these
// lanes, all others have those of their slots: so they have no more in common than the bits of a hash.
func TestFullFlowTableKeepsFlowsOnLanes(t *testing.T) {
	s := newSpread(t, SpreadOptions{L2: true})
	expect.NoError(t, s.SetGap(time.Hour))
	expect.NoError(t, s.DeletePeer(51820, endpoint(them6)))
	s.setOpenPeer(t, Peer{Tunnel: 51820, Endpoint: endpoint(them6), Lanes: ports(61000, 61063)})
	s.fillFlows(t, them6, 0, func(entry int) int { return (entry + 1) % 64 })
	in, hash, tagged := data(us6, them6).bytes(), newHash(t), 0
	for label := range uint32(10000) {
		setLabel(in, label)
		out, _, _ := runTC(t, s.Egress(), in, skb{})
		flow := flowHash(t, hash, in)
		want := uint16(61000 + flow>>16%64)
		if flow&0xff == 0 {
			want = uint16(61000 + (flow>>16+1)%64)
			tagged++
		}
		if got := sourcePort(out); got != want {
			t.Fatalf("flow %#x: port %d, want %d", flow, got, want)
		}
	}
	if tagged == 0 {
		t.Error("no flow has the entries' tag")
	}
	got := counted(t, s, Counters{})
	if got[EventSpread] != 10000 || got[EventFlowNew] != 0 || got[EventFlowReassigned] != 0 {
		t.Errorf("unexpected counters %v", got)
	}
}

// fillFlows makes all entries of the flow table those of flows to a peer with tag 0, of some time ago.
func (s *State) fillFlows(t testing.TB, peer string, age time.Duration, lane func(entry int) int) {
	t.Helper()
	now, err := ticks()
	expect.NoError(t, err)
	var number uint16
	s.changePeer(t, 51820, endpoint(peer), func(value *spreadPeer) { number = value.Number })
	keys, entries := make([]uint32, s.maps.Flows.MaxEntries()), make([]uint64, s.maps.Flows.MaxEntries())
	for i := range keys {
		keys[i], entries[i] = uint32(i), uint64(now-int64(age>>tickShift))<<tickBit|uint64(number)<<peerBit|uint64(lane(i))
	}
	_, err = s.maps.Flows.BatchUpdate(keys, entries, nil)
	expect.NoError(t, err)
}

// TestFlowsOfOtherPeersMoveNone has a peer that proves one port, to which so many flows go that the whole flow table is theirs. The flows to
// another peer, which has all ports but that one, keep a port each.
func TestFlowsOfOtherPeersMoveNone(t *testing.T) {
	const hostile, gap = "[2001:db8:2::3]:51821", 20 * time.Hour // of some minutes that the test may take
	s := newSpread(t, SpreadOptions{L2: true})
	expect.NoError(t, errors.Join(s.SetGap(gap), s.DeletePeer(51820, endpoint(them6))))
	open := func(peer string, lanes ...int) {
		s.changePeer(t, 51820, endpoint(peer), func(value *spreadPeer) {
			for i := range value.Lane {
				value.closeLane(i)
				if slices.Contains(lanes, i) {
					value.Lane[i].Proof = value.Proof
				}
			}
		})
	}
	for _, peer := range []string{them6, hostile} {
		s.setOpenPeer(t, Peer{Tunnel: 51820, Endpoint: endpoint(peer), Lanes: ports(61000, 61007)})
	}
	open(hostile, 7)
	s.fillFlows(t, hostile, 0, func(int) int { return 7 })
	in, hash := data(us6, them6).bytes(), newHash(t)
	var labels []uint32
	entries := map[uint32]bool{}
	for label := range uint32(500) {
		setLabel(in, label)
		if entry := flowHash(t, hash, in) >> 16; !entries[entry] { // which at most one of the flows has: the other ones follow their hash
			entries[entry] = true
			labels = append(labels, label)
		}
	}
	want := func(what string, lanes ...int) {
		t.Helper()
		for _, label := range labels {
			setLabel(in, label)
			port, _ := sentFrom(t, s, in)
			lane := int(flowHash(t, hash, in) >> 16 % 8)
			for !slices.Contains(lanes, lane) {
				lane = (lane + 1) % 8
			}
			if port != uint16(61000+lane) {
				t.Fatalf("%s: flow %d left from port %d, want %d", what, label, port, 61000+lane)
			}
		}
	}
	open(them6, 0, 1, 2, 3, 4, 5, 6)
	want("all but one open", 0, 1, 2, 3, 4, 5, 6)
	open(them6, 0, 2, 3, 5, 6)
	want("two more closed", 0, 2, 3, 5, 6)
	open(them6, 0, 1, 2, 3, 4, 5, 6)
	s.fillFlows(t, hostile, gap*3/2, func(int) int { return 7 })
	want("paused flows of the other peer", 0, 1, 2, 3, 4, 5, 6)
	open(them6, 0, 1, 2, 3, 4, 5, 6, 7)
	if port, _ := sentFrom(t, s, data(us6, hostile).bytes()); port != 61007 {
		t.Errorf("a flow to the hostile peer left from port %d, want its only one", port)
	}
	want("the flows have the entries", 0, 1, 2, 3, 4, 5, 6)
	open(them6)
	if port, counts := sentFrom(t, s, in); port != 51820 || counts[EventPortBlocked] != 1 {
		t.Errorf("without an open port: got port %d, counted %v, want the listen port", port, counts)
	}
}

// TestFlowKeepsPortWhenListChanges has flows that never pause while ports are added, removed and put into another order.
func TestFlowKeepsPortWhenListChanges(t *testing.T) {
	s := newSpread(t, SpreadOptions{L2: true})
	expect.NoError(t, s.SetGap(time.Hour))
	to := func(ports []uint16) {
		s.setOpenPeer(t, Peer{Tunnel: 51820, Endpoint: endpoint(them6), Lanes: ports})
	}
	in := data(us6, them6).bytes()
	sent := func() map[uint32]uint16 {
		from := map[uint32]uint16{}
		for label := range uint32(16) {
			setLabel(in, label+1)
			from[label], _ = sentFrom(t, s, in)
		}
		return from
	}
	to(ports(61000, 61063))
	before := sent()
	for name, list := range map[string][]uint16{
		"another port in front": append([]uint16{61700}, ports(61000, 61062)...),
		"the other way round":   reversed(ports(61000, 61063)),
		"a longer list":         ports(61000, 61063),
	} {
		to(list)
		for label, port := range sent() {
			if was := before[label]; port != was && slices.Contains(list, was) {
				t.Errorf("%s: flow %d left from port %d, then from %d", name, label, was, port)
			}
		}
	}
	to(ports(61800, 61802)) // none of them
	moved := sent()
	if again := sent(); !maps.Equal(again, moved) {
		t.Errorf("flows without their port left from %v, then from %v", moved, again)
	}
}

func reversed(ports []uint16) []uint16 {
	slices.Reverse(ports)
	return ports
}

// TestClosedLanesGetNoFlows: only the lanes that the path admits share the load.
func TestClosedLanesGetNoFlows(t *testing.T) {
	c := newLaneModel(t, 16, time.Microsecond, them6)
	c.s.changePeer(t, 51820, endpoint(them6), func(value *spreadPeer) {
		for i := range 16 {
			if i%3 != 0 {
				value.closeLane(i)
			}
		}
	})
	used := map[uint16]bool{}
	for label := range uint32(200) {
		in := data(us6, them6).bytes()
		setLabel(in, label)
		port, _ := sentFrom(t, c.s, in)
		used[port] = true
	}
	want := map[uint16]bool{61000: true, 61000 + 7*3: true, 61000 + 7*6: true, 61000 + 7*9: true, 61000 + 7*12: true, 61000 + 7*15: true}
	if !maps.Equal(used, want) {
		t.Errorf("got ports %v, want %v", used, want)
	}
}
