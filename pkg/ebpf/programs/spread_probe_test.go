// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/ropewalk/ropewalk/test/expect"
)

const (
	probeLen   = 40
	listenLane = 64
	probeKind  = 1
	answerKind = 2

	tcDrop     = 2
	tcRedirect = 7
)

var (
	ourKey   = [16]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	theirKey = [16]byte{1: 7, 15: 9}
)

// siphash is SipHash-2-4.
func siphash(key [16]byte, b []byte) uint64 {
	k0, k1 := binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:])
	v0, v1, v2, v3 := k0^0x736f6d6570736575, k1^0x646f72616e646f6d, k0^0x6c7967656e657261, k1^0x7465646279746573
	rounds := func(n int) {
		for range n {
			v0, v2 = v0+v1, v2+v3
			v1, v3 = bits.RotateLeft64(v1, 13)^v0, bits.RotateLeft64(v3, 16)^v2
			v0 = bits.RotateLeft64(v0, 32)
			v2, v0 = v2+v1, v0+v3
			v1, v3 = bits.RotateLeft64(v1, 17)^v2, bits.RotateLeft64(v3, 21)^v0
			v2 = bits.RotateLeft64(v2, 32)
		}
	}
	padded := append(slices.Clone(b), make([]byte, 8-len(b)%8)...)
	padded[len(padded)-1] = byte(len(b))
	for ; len(padded) > 0; padded = padded[8:] {
		m := binary.LittleEndian.Uint64(padded)
		v3 ^= m
		rounds(2)
		v0 ^= m
	}
	v2 ^= 0xff
	rounds(4)
	return v0 ^ v1 ^ v2 ^ v3
}

// TestSipHashMatchesPublishedVectors checks the reference of the other tests: messages 00, 01, ... under the key 00 to 0f, from the
// appendix of the paper and from the authors' vectors.
func TestSipHashMatchesPublishedVectors(t *testing.T) {
	for n, want := range map[int]uint64{0: 0x726fdb47dd0e0e31, 8: 0x93f5f5799a932462, 15: 0xa129ca6149be45e5, 31: 0x32d892fad841c342, 32: 0x7127512f72f27cce} {
		var b []byte
		for i := range n {
			b = append(b, byte(i))
		}
		if got := siphash(ourKey, b); got != want {
			t.Errorf("%d bytes: got %#x, want %#x", n, got, want)
		}
	}
}

// probeMessage is a probe or an answer, without its MAC.
type probeMessage struct {
	lane, kind byte
	port       uint16
	round      uint32
	time       uint64
	secret     uint64
}

func (e probeMessage) bytes(key [16]byte) []byte {
	b := append([]byte("rwp\x01"), e.lane, e.kind)
	b = binary.BigEndian.AppendUint16(b, e.port)
	b = binary.LittleEndian.AppendUint32(b, e.round)
	b = append(b, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, e.time)
	b = binary.LittleEndian.AppendUint64(b, e.secret)
	return binary.LittleEndian.AppendUint64(b, siphash(key, b))
}

func parseProbe(t *testing.T, b []byte, key [16]byte) probeMessage {
	t.Helper()
	if len(b) != probeLen {
		t.Fatalf("got %d bytes, want %d", len(b), probeLen)
	}
	e := probeMessage{b[4], b[5], binary.BigEndian.Uint16(b[6:]), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])}
	if !bytes.Equal(b, e.bytes(key)) {
		t.Fatalf("got %x, want %x", b, e.bytes(key))
	}
	return e
}

// probing is a Spread whose peers at them4 and them6 have not answered yet.
type probing struct {
	*Spread
	t   *testing.T
	xdp bool // gather by XDP

	filter *ebpf.Program // the error filter in place of gather; or nil
}

func newProbing(t *testing.T) *probing {
	t.Helper()
	e := &probing{Spread: newSpread(t, SpreadOptions{L2: true}), t: t}
	for _, at := range []string{them4, them6} {
		e.changePeer(t, 51820, endpoint(at), func(value *spreadPeer) {
			keys := value.keys()
			value.setKeys(ProbeKeys{})
			value.setKeys(keys)
		})
	}
	return e
}

// newProved is newProbing after the answers of the peer at them4.
func newProved(t *testing.T) *probing {
	t.Helper()
	e := newProbing(t)
	for range 2 {
		e.step()
		e.answer(listenLane)
	}
	e.answer(0)
	return e
}

func (e *probing) change(f func(value *spreadPeer)) {
	e.t.Helper()
	e.changePeer(e.t, 51820, endpoint(them4), f)
}

func (e *probing) state() (now spreadPeer) {
	e.t.Helper()
	e.change(func(value *spreadPeer) { now = *value })
	return now
}

// step sends a message in a round of its own, for which probes are due, and returns its source port.
func (e *probing) step() uint16 {
	e.t.Helper()
	ended := now(e.t) - 1<<40 // longer ago than any round takes, also on a host that booted a moment ago
	e.change(func(value *spreadPeer) {
		value.RoundAt, value.Listen.Messages, value.Lane[0].Messages = ended, 149, 149
	})
	return e.same()
}

// same sends a message in the present round.
func (e *probing) same() uint16 {
	e.t.Helper()
	port, _ := sentFrom(e.t, e.Spread, data(us4, them4).bytes())
	return port
}

func (e *probing) want(what string, got, want uint16) {
	e.t.Helper()
	if got != want {
		s := e.state()
		e.t.Fatalf("%s: got source port %d, want %d; answers %d, ready %d, listen %+v, lane %+v", what, got, want, s.Answers, s.Ready, s.Listen, s.Lane[0])
	}
}

// now returns the clock of the programs.
func now(t testing.TB) uint64 {
	t.Helper()
	n, err := ticks()
	expect.NoError(t, err)
	return uint64(n) << tickShift
}

// eachProbing runs a test with gather by tc and by XDP.
func eachProbing(t *testing.T, f func(t *testing.T, e *probing)) {
	t.Run("tc", func(t *testing.T) { f(t, newProbing(t)) })
	t.Run("XDP", func(t *testing.T) {
		e := newProbing(t)
		e.xdp = true
		f(t, e)
	})
}

// receive has gather see a packet, and returns its verdict, as of tc, the packet afterwards and the counters that changed.
func (e *probing) receive(d datagram) (verdict uint32, out []byte, events map[Event]uint64) {
	e.t.Helper()
	return e.receivePacket(withIPChecksum(d))
}

func (e *probing) receivePacket(in []byte) (verdict uint32, out []byte, events map[Event]uint64) {
	e.t.Helper()
	before := counters(e.t, e.Spread)
	o := &ebpf.RunOptions{Data: in, DataOut: make([]byte, len(in)+256)}
	program := e.Ingress()
	switch {
	case e.filter != nil:
		program = e.filter
	case e.xdp:
		program = e.XDP()
	}
	verdict, err := program.Run(o)
	expect.NoError(e.t, err)
	if e.xdp {
		verdict = map[uint32]uint32{1: tcDrop, xdpPass: tcxNext, 3: tcRedirect}[verdict]
	}
	return verdict, o.DataOut, counted(e.t, e.Spread, before)
}

// answer delivers the answer to the probe of a lane in the present round.
func (e *probing) answer(lane byte) {
	e.t.Helper()
	m := probeMessage{lane: lane, kind: answerKind, port: 61005 + uint16(lane), round: e.state().Round, time: now(e.t), secret: e.state().Secret}
	if lane == listenLane {
		m.port = 51820
	}
	verdict, _, events := e.receive(datagram{src: them4, dst: us4, payload: m.bytes(ourKey)})
	if verdict != tcDrop || !maps.Equal(events, once(EventProbeAnswer)) {
		e.t.Fatalf("got verdict %#x, events %v, want the answer accepted", verdict, events)
	}
}

// TestLanePortsBelongToProvenPeers: before a peer has answered a probe, its address may be a third party's, which answers a container.
func TestLanePortsBelongToProvenPeers(t *testing.T) {
	eachProbing(t, func(t *testing.T, e *probing) {
		p := Peer{Tunnel: 51820, Endpoint: endpoint(them4), Lanes: ports(lane, lane), Gather: between(62000, 62999)}
		set := func(keys ProbeKeys) {
			t.Helper()
			p.ProbeKeys = keys
			expect.NoError(t, e.SetPeer(p))
		}
		redirects := func(what string, want bool) {
			t.Helper()
			e.forgetRecentAddresses(t)
			for _, src := range []string{them4, from(them4, gathers)} {
				_, _, events := e.receive(datagram{src: src, dst: from(us4, lane), payload: message(4, 64)})
				if got := events[EventToListenPort] == 1; got != want {
					t.Errorf("%s: a datagram from %s to a lane port is redirected: %v", what, src, got)
				}
			}
		}
		set(ProbeKeys{})
		set(NewProbeKeys(ourKey, theirKey))
		redirects("before an answer", false)
		e.step()
		redirects("before an answer to a probe", false)
		e.answer(listenLane)
		redirects("after it", true)
		p.Lanes = ports(lane, lane+1)
		set(NewProbeKeys(ourKey, theirKey))
		redirects("with other lanes", true)
		set(NewProbeKeys(theirKey, ourKey))
		redirects("another peer", false)
		p.Proved = true
		set(NewProbeKeys(ourKey, theirKey))
		redirects("the one that came back", true)
	})
}

// TestPortsWithoutProbesAreNATs: a NAT may give a peer that does not spread a port in the range of lane ports, and has no mapping for another. A peer that spreads
// has sent a probe from a port before anything else.
func TestPortsWithoutProbesAreNATs(t *testing.T) {
	eachProbing(t, func(t *testing.T, e *probing) {
		p := Peer{Tunnel: 51820, Endpoint: endpoint(them4), Lanes: ports(lane, lane), Gather: between(62000, 62999), ProbeKeys: NewProbeKeys(ourKey, theirKey)}
		e.setHeard(t, p, 0)
		gathers := func(what string, heard ...uint16) {
			t.Helper()
			e.forgetRecentAddresses(t)
			for port := uint16(62000); port < 62010; port++ {
				_, out, events := e.receive(datagram{src: from(them4, port), dst: us4, payload: message(4, 64)})
				want := slices.Contains(heard, port)
				if got := events[EventGather] == 1; got != want || got != (sourcePort(out) == 51821) {
					t.Errorf("%s: port %d is gathered: %v, want %v", what, port, got, want)
				}
			}
		}
		probe := func(src, port uint16, verdict uint32) {
			t.Helper()
			d := datagram{src: from(them4, src), dst: us4, payload: probeMessage{kind: probeKind, port: port}.bytes(theirKey)}
			if got, _, events := e.receive(d); got != verdict {
				t.Errorf("a probe from port %d by %d: got verdict %#x, events %v, want %#x", port, src, got, events, verdict)
			}
		}
		reply := uint32(tcRedirect)
		gathers("before a probe")
		probe(51821, 51821, reply)
		gathers("after a probe from the listen port")
		probe(62005, 61005, tcDrop)
		gathers("after a probe through a NAT")
		probe(62005, 62005, reply)
		gathers("after one from a lane port", 62005)
		probe(62003, 62003, reply)
		probe(62006, 62006, reply)
		gathers("after three", 62003, 62005, 62006)
		p.Lanes = ports(lane, lane+1)
		expect.NoError(t, e.SetPeer(p))
		gathers("with other lanes", 62003, 62005, 62006)
		e.changeSource(t, p, func(value *spreadSource) { value.HeardAt = now(t) - uint64(9*time.Minute) })
		gathers("nine minutes after the last probe", 62003, 62005, 62006)
		e.changeSource(t, p, func(value *spreadSource) { value.HeardAt = now(t) - uint64(10*time.Minute) })
		gathers("ten minutes after it")
		probe(51821, 51821, reply)
		gathers("after another one, from the listen port", 62003, 62005, 62006)
		p.ProbeKeys = NewProbeKeys(theirKey, ourKey)
		expect.NoError(t, e.SetPeer(p))
		gathers("another peer at the same address")
		expect.NoError(t, e.SetPeer(p))
		d := datagram{src: from(them4, 62003), dst: us4, payload: probeMessage{kind: probeKind, port: 62003}.bytes(ourKey)}
		if verdict, _, _ := e.receive(d); verdict != reply {
			t.Errorf("a probe with the new key: got verdict %#x, want %#x", verdict, reply)
		}
		gathers("a probe of the other peer", 62003)
		p.Gather = between(61500, 62499)
		expect.NoError(t, e.SetPeer(p))
		gathers("another range")
		p.ProbeKeys = ProbeKeys{}
		expect.NoError(t, e.SetPeer(p))
		gathers("no keys", 62000, 62001, 62002, 62003, 62004, 62005, 62006, 62007, 62008, 62009)
		p.Gather = between(61000, 62024)
		if err := e.SetPeer(p); err == nil {
			t.Error("a range of 1,025 ports is accepted, of which two share a bit")
		}
	})
}

// probeClone returns the context of a message's clone that becomes a probe.
func probeClone(port uint16, lane uint32) (c skb) {
	copy(c[48/4:], []uint32{0x5f2c81d7, 0x9b03e64a, uint32(networkOrder(port)), lane})
	return c
}

// withIPChecksum returns a packet with the checksum of its IPv4 header.
func withIPChecksum(d datagram) []byte {
	b := d.bytes()
	ip := b[14+4*len(d.tags):]
	if ip[0]>>4 != 4 {
		return b
	}
	sum := uint32(0)
	for i := range int(ip[0]&15) * 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[2*i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum&0xffff+sum>>16))
	return b
}

// TestMessageCloneBecomesProbe has clones of all kinds of messages. The packets of BPF_PROG_TEST_RUN have no partial checksums.
func TestMessageCloneBecomesProbe(t *testing.T) {
	e := newProbing(t)
	for name, d := range map[string]datagram{
		"IPv4": data(us4, them4), "IPv6": data(us6, them6),
		"without checksum":  data(us4, them4).with(func(d *datagram) { d.checksum = none }),
		"with options":      data(us4, them4).with(func(d *datagram) { d.options = 3 }),
		"with priority tag": data(us4, them4).with(func(d *datagram) { d.tags = []uint16{0x8100} }),
		"long":              data(us4, them4).with(func(d *datagram) { d.payload = message(4, 1400) }),
		"with one hop":      data(us4, them4).with(func(d *datagram) { d.hops = 1 }),
		"v6 with one hop":   data(us6, them6).with(func(d *datagram) { d.hops = 1 }),
	} {
		t.Run(name, func(t *testing.T) {
			before := counters(t, e.Spread)
			clone := probeClone(61005, 0)
			clone[32/4] = 2 // of the inner packet, by its TOS (ip_forward)
			out, after, refused := runTC(t, e.Egress(), withIPChecksum(d), clone)
			if refused {
				t.Skip("the kernel refuses the packet")
			}
			if after[32/4] != 0 {
				t.Errorf("got priority %d, want none", after[32/4])
			}
			m := parseProbe(t, out[len(out)-probeLen:], ourKey)
			if m.lane != 0 || m.kind != probeKind || m.port != 61005 {
				t.Errorf("got %+v", m)
			}
			want := d.with(func(d *datagram) { d.payload, d.src, d.checksum = out[len(out)-probeLen:], from(d.src, 61005), whole }).with(func(d *datagram) { d.hops = 64 })
			if !bytes.Equal(out, withIPChecksum(want)) {
				t.Errorf("got\n%x, want\n%x", out, withIPChecksum(want))
			}
			if got := counted(t, e.Spread, before); !maps.Equal(got, once(EventProbeSent)) {
				t.Errorf("counted %v", got)
			}
		})
	}
}

// TestReplayedProbesLeaveOthersAnswered has a probe that an attacker recorded and sends again and again: a limit of answers would drop the peer's own.
func TestReplayedProbesLeaveOthersAnswered(t *testing.T) {
	probe := func(round uint32, time uint64) datagram {
		m := probeMessage{lane: 3, kind: probeKind, port: gathers, round: round, time: time}
		return datagram{src: from(them4, gathers), dst: us4, payload: m.bytes(theirKey)}
	}
	eachProbing(t, func(t *testing.T, e *probing) {
		for n := range uint32(2000) {
			e.receive(probe(5, 6))
			if verdict, _, events := e.receive(probe(1000+n, 1<<40)); verdict != tcRedirect || !maps.Equal(events, once(EventProbeReply)) {
				t.Fatalf("after %d replays: got verdict %#x, events %v, want an answer", n+1, verdict, events)
			}
		}
	})
}

// TestProbeIsTurnedAround has probes of the peer from its listen port and from a lane port. They have one hop left, and their answers have all.
func TestProbeIsTurnedAround(t *testing.T) {
	changes := map[string]func(d *datagram){
		"plain":             func(*datagram) {},
		"without checksum":  func(d *datagram) { d.checksum = none },
		"with options":      func(d *datagram) { d.options = 3 },
		"with priority tag": func(d *datagram) { d.tags = []uint16{0x8100} },
	}
	eachProbing(t, func(t *testing.T, e *probing) {
		for name, change := range changes {
			for _, ends := range [][2]string{{us4, them4}, {us6, them6}} {
				if name == "with options" && ends[0] == us6 {
					continue // they are IPv4's
				}
				for _, port := range []uint16{51821, gathers} {
					m := probeMessage{lane: 3, kind: probeKind, port: port, round: 5, time: 6}
					probe := datagram{src: from(ends[1], port), dst: ends[0], payload: m.bytes(theirKey), hops: 1}.with(change)
					verdict, out, events := e.receive(probe)
					m.kind = answerKind
					answer := datagram{src: ends[0], dst: ends[1], payload: m.bytes(theirKey)}.with(change)
					want := withIPChecksum(answer)
					if verdict != tcRedirect || !bytes.Equal(out, want) || !maps.Equal(events, once(EventProbeReply)) {
						t.Errorf("%s, %v to %s: got verdict %#x, events %v\n%x, want\n%x", name, port, ends[0], verdict, events, out, want)
					}
				}
			}
		}
	})
}

// TestForgedProbeIsCountedAndDropped: an attacker can replay and forge, and knows no key.
func TestForgedProbeIsCountedAndDropped(t *testing.T) {
	eachProbing(t, rejectsForgedProbe)
}

func rejectsForgedProbe(t *testing.T, e *probing) {
	e.step()
	e.answer(listenLane)
	e.step() // the lane's first probe
	s, at := e.state(), now(t)
	good := probeMessage{lane: 0, kind: answerKind, port: lane, round: s.Round, time: at, secret: s.Secret}
	answer := probeMessage{lane: listenLane, kind: answerKind, port: 51820, round: s.Round, time: at, secret: s.Secret}
	e.answer(listenLane)
	before := e.state()
	for name, c := range map[string]struct {
		from string
		sent []byte
		want uint32
	}{
		"answer with another key":    {them4, good.bytes(theirKey), tcDrop},
		"probe with another key":     {them4, probeMessage{kind: probeKind, port: 51821}.bytes(ourKey), tcDrop},
		"replayed answer":            {them4, answer.bytes(ourKey), tcDrop},
		"reflected probe":            {them4, probeMessage{lane: listenLane, kind: probeKind, port: 51821, round: s.Round, time: at}.bytes(ourKey), tcDrop},
		"answer of a later round":    {them4, probeMessage{0, answerKind, lane, s.Round + 1, at, s.Secret}.bytes(ourKey), tcDrop},
		"answer of an early round":   {them4, probeMessage{0, answerKind, lane, s.Round - 40, at, s.Secret}.bytes(ourKey), tcDrop},
		"late answer":                {them4, probeMessage{0, answerKind, lane, s.Round, at - uint64(11*time.Second), s.Secret}.bytes(ourKey), tcDrop},
		"answer for another port":    {them4, probeMessage{0, answerKind, lane + 1, s.Round, at, s.Secret}.bytes(ourKey), tcDrop},
		"answer for no lane":         {them4, probeMessage{65, answerKind, lane, s.Round, at, s.Secret}.bytes(ourKey), tcDrop},
		"answer for an unused lane":  {them4, probeMessage{7, answerKind, lane, s.Round, at, s.Secret}.bytes(ourKey), tcDrop},
		"answer from a lane port":    {from(them4, gathers), good.bytes(ourKey), tcDrop},
		"probe through a NAT":        {from(them4, gathers), probeMessage{kind: probeKind, port: gathers + 1}.bytes(theirKey), tcDrop},
		"probe not gathered from":    {from(them4, 63000), probeMessage{kind: probeKind, port: 63000}.bytes(theirKey), tcxNext},
		"answer without the secret":  {them4, probeMessage{0, answerKind, lane, s.Round, at, s.Secret ^ 1}.bytes(ourKey), tcDrop},
		"neither probe nor answer":   {them4, probeMessage{kind: 3}.bytes(ourKey), tcDrop},
		"answer from a third host":   {"203.0.113.9:51821", good.bytes(ourKey), tcxNext},
		"something of that length":   {them4, make([]byte, probeLen), tcxNext},
		"data message of that range": {them4, message(4, probeLen), tcxNext},
	} {
		t.Run(name, func(t *testing.T) {
			verdict, _, events := e.receive(datagram{src: c.from, dst: us4, payload: c.sent})
			want := map[Event]uint64{}
			if c.want == tcDrop {
				want = once(EventProbeBad)
			}
			if verdict != c.want || !maps.Equal(events, want) {
				t.Errorf("got verdict %#x, events %v, want %#x, %v", verdict, events, c.want, want)
			}
		})
	}
	if got := e.state(); got != before {
		t.Errorf("an invalid answer counted: got %+v, want %+v", got, before)
	}
	e.want("without a valid answer", e.same(), 51820)
	e.answer(0) // the valid one
}

// TestLaneIsUsedOnlyAfterItsProof: the peer answers probes from the listen port first, and then one from the lane.
func TestLaneIsUsedOnlyAfterItsProof(t *testing.T) {
	e := newProbing(t)
	for range 3 {
		before := counters(t, e.Spread)
		e.want("never answered", e.step(), 51820)
		if got := counted(t, e.Spread, before); got[EventUnproven] != 1 || e.state().Lane[0].Sent != 0 {
			t.Errorf("counted %v, lane %+v, want no probe of the lane", got, e.state().Lane[0])
		}
	}
	e.answer(listenLane)
	e.want("the listen port answered", e.step(), 51820)
	e.answer(listenLane)
	e.want("the lane is not answered yet", e.same(), 51820)
	e.answer(0)
	e.want("the lane answered", e.same(), lane)
	peers, err := e.Peers()
	expect.NoError(t, err)
	if p := peers[0]; !p.ProbeAnswered || !p.Ready || p.Blocked != nil || peers[1].ProbeAnswered || peers[1].Ready {
		t.Errorf("got %+v", peers)
	}
}

// TestNewPortOfReadyPeerIsNotBlocked: no probe from it was lost.
func TestNewPortOfReadyPeerIsNotBlocked(t *testing.T) {
	e := newProved(t)
	expect.NoError(t, e.SetPeer(Peer{Tunnel: 51820, Endpoint: endpoint(them4), Lanes: ports(lane, lane+1), ProbeKeys: NewProbeKeys(ourKey, theirKey), Gather: between(62000, 62999)}))
	peers, err := e.Peers()
	expect.NoError(t, err)
	if p := peers[0]; !p.Ready || p.Blocked != nil {
		t.Errorf("got %+v, want it ready, and no blocked port", p)
	}
}

// TestNoLaneIsUsedBeforeAllHadProbes: the first lane alone would get all flows, and they would stay on it.
func TestNoLaneIsUsedBeforeAllHadProbes(t *testing.T) {
	e := newProbing(t)
	expect.NoError(t, e.SetPeer(Peer{Tunnel: 51820, Endpoint: endpoint(them4), Lanes: ports(lane, lane+2), ProbeKeys: NewProbeKeys(ourKey, theirKey), Gather: between(62000, 62999)}))
	e.step()
	e.answer(listenLane)
	for i := range byte(3) {
		e.want(fmt.Sprintf("before probe %d", i), e.step(), 51820)
		e.answer(listenLane)
		e.answer(i)
	}
	if port := e.same(); port < lane || port > lane+2 {
		t.Errorf("all lanes answered: got port %d", port)
	}
}

// TestLaneClosesAfterThreeLostProbes: the listen port's probes are answered, the lane's are not.
func TestLaneClosesAfterThreeLostProbes(t *testing.T) {
	e := newProved(t)
	for round := range 4 {
		e.want(fmt.Sprintf("round %d", round), e.step(), lane)
		e.answer(listenLane)
		e.want("within the round", e.same(), lane)
	}
	e.want("three lost", e.step(), 51820)
	before := counters(t, e.Spread)
	e.want("three lost", e.same(), 51820)
	if got := counted(t, e.Spread, before); !maps.Equal(got, once(EventPortBlocked)) {
		t.Errorf("counted %v", got)
	}
	peers, err := e.Peers()
	expect.NoError(t, err)
	if p := peers[0]; !p.ProbeAnswered || !slices.Equal(p.Blocked, []uint16{lane}) || peers[1].ProbeAnswered || peers[1].Blocked != nil {
		t.Errorf("got %+v", peers)
	}
	for range 4 {
		e.want("blocked", e.step(), 51820)
		e.answer(listenLane)
	}
	e.answer(0)
	for range 3 {
		e.want("answered", e.step(), lane)
		e.answer(listenLane)
	}
}

// TestClosedLaneIsProvedAgainByTrafficOfOthers: each lane in use has its own probe in each round, and the closed one has its turn all the same.
func TestClosedLaneIsProvedAgainByTrafficOfOthers(t *testing.T) {
	e := newProved(t)
	expect.NoError(t, e.SetPeer(Peer{Tunnel: 51820, Endpoint: endpoint(them4), Lanes: ports(lane, lane+1), ProbeKeys: NewProbeKeys(ourKey, theirKey), Gather: between(62000, 62999)}))
	for range 2 {
		e.want("the first lane", e.step(), lane)
		e.answer(listenLane)
		e.answer(0)
	}
	if s := e.state(); s.Lane[1].Sent == 0 {
		t.Fatalf("the closed lane had no probe: %+v", s.Lane[1])
	}
}

// TestLanesStayOpen has cases in which no lane must be closed.
func TestLanesStayOpen(t *testing.T) {
	for name, c := range map[string]struct{ listen, lane func(round int) bool }{
		"two of three lost":         {func(int) bool { return true }, func(r int) bool { return r%3 == 2 }},
		"outage of both":            {func(r int) bool { return r < 3 || r > 7 }, func(r int) bool { return r < 3 || r > 7 }},
		"all answered":              {func(int) bool { return true }, func(int) bool { return true }},
		"only lane answered":        {func(r int) bool { return r%7 == 0 }, func(int) bool { return true }},
		"listen port lost in turns": {func(r int) bool { return r%2 == 0 }, func(r int) bool { return r%2 == 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			e := newProved(t)
			for round := range 40 {
				e.want(fmt.Sprintf("round %d", round), e.step(), lane)
				if c.listen(round) {
					e.answer(listenLane)
				}
				if c.lane(round) {
					e.answer(0)
				}
				e.want("later in the round", e.same(), lane)
			}
		})
	}
}

// TestSilentPeerLosesItsProofs: it no longer gathers, for example, and a firewall admits only what comes from the listen port.
func TestSilentPeerLosesItsProofs(t *testing.T) {
	e := newProved(t)
	for round := range 8 {
		e.want(fmt.Sprintf("round %d", round), e.step(), lane)
	}
	e.want("silent", e.step(), 51820)
	if s := e.state(); s.Answers != 0 || s.Ready != 0 {
		t.Errorf("got answers %d, ready %d, want none", s.Answers, s.Ready)
	}
	for range 2 {
		e.answer(listenLane)
		e.want("the listen port answers again", e.step(), 51820)
	}
	e.answer(0)
	e.want("the lane answers again", e.same(), lane)
}

// TestDelayedAnswersKeepLane has a path whose round trip takes six rounds.
func TestDelayedAnswersKeepLane(t *testing.T) {
	e := newProved(t)
	const delay = 6
	for round := range uint32(40) {
		e.want(fmt.Sprintf("round %d", round), e.step(), lane)
		if round < delay {
			continue
		}
		sent := e.state().Round - delay
		for _, m := range []probeMessage{{listenLane, answerKind, 51820, sent, now(t), e.state().Secret}, {0, answerKind, lane, sent, now(t), e.state().Secret}} {
			if _, _, events := e.receive(datagram{src: them4, dst: us4, payload: m.bytes(ourKey)}); events[EventProbeAnswer] != 1 {
				t.Fatalf("counted %v", events)
			}
			e.want("between the answers", e.same(), lane)
		}
	}
}

func TestPausedSpreadSendsNoProbes(t *testing.T) {
	e := newProved(t)
	expect.NoError(t, e.SetPaused(true))
	before := e.state()
	e.want("paused", e.step(), 51820)
	if got := e.state(); got.Round != before.Round {
		t.Errorf("got round %d, want %d", got.Round, before.Round)
	}
}

// TestRoundsOfSilentPeerGrow: each is twice as long as the one before, from 4.3 seconds to four minutes.
func TestRoundsOfSilentPeerGrow(t *testing.T) {
	e := newProbing(t)
	e.step()
	for round := range 40 {
		length := max(1<<32, 500*time.Millisecond<<min(round, 9))
		began := func(ago time.Duration) bool {
			before := e.state().Round
			e.change(func(value *spreadPeer) { value.RoundAt = now(t) - uint64(ago) })
			e.same()
			return e.state().Round != before
		}
		if began(length - 100*time.Millisecond) {
			t.Fatalf("round %d ended before %v", round, length)
		}
		if !began(length + 100*time.Millisecond) {
			t.Fatalf("round %d did not end after %v", round, length)
		}
	}
}

func TestPeerWithoutKeysKeepsListenPort(t *testing.T) {
	e := newProbing(t)
	e.change(func(value *spreadPeer) { value.setKeys(ProbeKeys{}) })
	before := e.state()
	e.want("without keys", e.step(), 51820)
	if got := e.state(); got.Round != before.Round || got.Keyed != 0 {
		t.Errorf("got %+v", got)
	}
	verdict, _, events := e.receive(datagram{src: them4, dst: us4, payload: probeMessage{kind: probeKind, port: 51821}.bytes(theirKey)})
	if verdict != tcxNext || len(events) != 0 {
		t.Errorf("got verdict %#x, events %v, want none", verdict, events)
	}
}

func TestProbeKeysAreRedacted(t *testing.T) {
	k := NewProbeKeys(ourKey, theirKey)
	text, err := json.Marshal(Peer{ProbeKeys: k}.ProbeKeys)
	expect.NoError(t, err)
	for _, got := range []string{fmt.Sprint(k), fmt.Sprintf("%+v", Peer{ProbeKeys: k}.ProbeKeys), fmt.Sprintf("%#v", k), fmt.Sprintf("%x", k), string(text)} {
		if got != "(redacted)" && got != `"(redacted)"` {
			t.Errorf("got %q", got)
		}
	}
}
