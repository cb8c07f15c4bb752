// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"bytes"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/test/expect"
)

// sentFrom returns the source port with which a data message leaves, and the counts, without those of flows.
func sentFrom(t *testing.T, s *Spread, in []byte) (port uint16, counts map[Event]uint64) {
	t.Helper()
	before := counters(t, s)
	out, _, _ := runTC(t, s.Egress(), in, skb{})
	counts = counted(t, s, before)
	delete(counts, EventFlowNew)
	return sourcePort(out), counts
}

// TestPausedMessagesKeepListenPort pauses all peers and one peer. Gather goes on.
func TestPausedMessagesKeepListenPort(t *testing.T) {
	s := newSpread(t, SpreadOptions{L2: true})
	to4, to6 := data(us4, them4).bytes(), data(us6, them6).bytes()
	for _, c := range []struct {
		name         string
		pause        func(bool) error
		want4, want6 uint16
	}{
		{"all", s.SetPaused, 51820, 51820},
		{"one peer", func(on bool) error { return s.SetPeerPaused(51820, endpoint(them4), on) }, 51820, lane},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect.NoError(t, c.pause(true))
			port4, counts := sentFrom(t, s, to4)
			port6, _ := sentFrom(t, s, to6)
			if port4 != c.want4 || port6 != c.want6 || !maps.Equal(counts, once(EventPaused)) {
				t.Errorf("paused: got ports %d and %d, counts %v, want %d, %d, paused", port4, port6, counts, c.want4, c.want6)
			}
			out, _, _ := runTC(t, s.Ingress(), data(from(them4, gathers), us4).bytes(), skb{})
			if port := sourcePort(out); port != endpoint(them4).Port() {
				t.Errorf("gather: got port %d, want %d", port, endpoint(them4).Port())
			}
			expect.NoError(t, c.pause(false))
			if port, _ := sentFrom(t, s, to4); port != lane {
				t.Errorf("resumed: got port %d, want %d", port, lane)
			}
		})
	}
}

func TestPausedPeerStaysSoWhenItChanges(t *testing.T) {
	s := newSpread(t, SpreadOptions{L2: true})
	expect.NoError(t, s.SetPeerPaused(51820, endpoint(them4), true))
	s.setOpenPeer(t, Peer{Tunnel: 51820, Endpoint: endpoint(them4), Lanes: []uint16{61007}})
	peers, err := s.Peers()
	expect.NoError(t, err)
	if len(peers) != 2 || !peers[0].Paused || peers[1].Paused {
		t.Errorf("got %+v, want the first peer paused", peers)
	}
	if err := s.SetPeerPaused(51820, netip.MustParseAddrPort("192.0.2.99:1"), true); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("no such peer: got error %v, want %v", err, ebpf.ErrKeyNotExist)
	}
}

// TestFragmentsLeaveOtherMessagesSpread: an attacker who forges an ICMP error can make the kernel fragment large messages, and nothing more.
func TestFragmentsLeaveOtherMessagesSpread(t *testing.T) {
	s := newSpread(t, SpreadOptions{L2: true})
	to4 := data(us4, them4).bytes()
	fragment := set(to4, 14+6, 0x20, 0)
	if port, counts := sentFrom(t, s, fragment); port != 51820 || !maps.Equal(counts, once(EventEgressFragment)) {
		t.Errorf("a fragment: got port %d, counts %v", port, counts)
	}
	if port, counts := sentFrom(t, s, to4); port != lane || !maps.Equal(counts, once(EventSpread)) {
		t.Errorf("after the fragment: got port %d, counts %v, want %d, once %v", port, counts, lane, EventSpread)
	}
}

// TestMessagesNotSpreadEndIdleTime has messages that keep the listen port. Keepalives do not count.
func TestMessagesNotSpreadEndIdleTime(t *testing.T) {
	to4 := data(us4, them4)
	for name, c := range map[string]struct {
		in    []byte
		pause func(s *Spread) error
		seen  bool
	}{
		"all paused": {to4.bytes(), func(s *Spread) error { return s.SetPaused(true) }, true},
		"paused":     {to4.bytes(), func(s *Spread) error { return s.SetPeerPaused(51820, endpoint(them4), true) }, true},
		"fragment":   {set(to4.bytes(), 14+6, 0x20, 0), nil, true},
		"spread":     {to4.bytes(), nil, true},
		"keepalive":  {to4.with(func(d *datagram) { d.payload = message(4, 32) }).bytes(), nil, false},
	} {
		s := newSpread(t, SpreadOptions{L2: true})
		if c.pause != nil {
			expect.NoError(t, c.pause(s))
		}
		sentFrom(t, s, c.in)
		idle, err := s.Idle(51820)
		expect.NoError(t, err)
		ago, seen := idle[endpoint(them4)]
		if seen != c.seen || ago > time.Minute {
			t.Errorf("%s: got %v, want seen %v", name, idle, c.seen)
		}
	}
}

// tooBig returns a Packet Too Big message from a router about a packet.
func tooBig(to string, packetTooBig []byte) []byte {
	icmp := slices.Concat([]byte{2, 0, 0, 0, 0, 0, 5, 0}, packetTooBig[:min(len(packetTooBig), 1232)])
	ip := ipv6(packet.ICMPv6, len(icmp))
	copy(ip[8:], slices.Concat(netip.MustParseAddr("2001:db8:9::9").AsSlice(), endpoint(to).Addr().AsSlice()))
	copy(ip[40:], icmp)
	setICMPv6Checksum(ip)
	return slices.Concat(ethernet(uint16(packet.EtherTypeIPv6), 0), ip)
}

// setICMPv6Checksum sets the checksum (RFC 4443, section 2.3).
func setICMPv6Checksum(ip []byte) {
	icmp := ip[40:]
	icmp[2], icmp[3] = 0, 0
	sum := uint32(packet.ICMPv6) + uint32(len(icmp))
	for _, part := range [][]byte{ip[8:40], icmp} {
		for i, b := range part {
			sum += uint32(b) << (8 * (1 - i%2))
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	icmp[2], icmp[3] = byte(^sum>>8), byte(^sum)
}

// fragmentationNeeded returns the ICMP error about an IPv4 packet (RFC 792), sent to us4.
func fragmentationNeeded(quoted []byte) []byte {
	ip := ipv4(packet.ICMP, 8)
	copy(ip[16:], endpoint(us4).Addr().AsSlice())
	copy(ip[20:], []byte{3, 4, 0, 0, 0, 0, 2, 64})
	return slices.Concat(ethernet(uint16(packet.EtherTypeIPv4), 0), fixLength(append(ip, quoted...)))
}

// firstFragment makes an IPv4 packet the first of several fragments.
func firstFragment(in []byte) []byte { return set(in, 14+6, 0x20, 0) }

// TestForgedFragmentationNeededIsDropped: WireGuard's messages have no Don't Fragment, so no router sends this error about them. The kernel believes it
// about any packet to the same address, and checks it for TCP and SCTP alone. Errors about these, and about packets to other hosts, pass if they are
// whole: in fragments they may hide what they are about.
func TestForgedFragmentationNeededIsDropped(t *testing.T) {
	e := newProbing(t)
	about := func(src, dst string) []byte { return data(src, dst).bytes()[14:] }
	sent := about(us4, them4)
	rows := map[string]struct {
		in   []byte
		drop bool
	}{
		"about the listen port":      {fragmentationNeeded(sent), true},
		"about a lane port":          {fragmentationNeeded(about(from(us4, lane), them4)), true},
		"about a peer's other port":  {fragmentationNeeded(about(us4, from(them4, 9))), true},
		"no more than the header":    {fragmentationNeeded(sent[:20]), true},
		"quoted with options":        {fragmentationNeeded(addIPv4Options(sent, 2)), true},
		"truncated in the header":    {fragmentationNeeded(sent[:19]), false},
		"about another port":         {fragmentationNeeded(about(from(us4, 51819), them4)), true},
		"about 0.0.0.0":              {fragmentationNeeded(about("0.0.0.0:51820", them4)), true},
		"about 127.0.0.1":            {fragmentationNeeded(about("127.0.0.1:51820", them4)), true},
		"about an Echo Reply":        {fragmentationNeeded(set(sent, 9, byte(packet.ICMP))), true},
		"a first fragment":           {firstFragment(fragmentationNeeded(sent)), true},
		"one that ends in a quote":   {firstFragment(fragmentationNeeded(about(us4, "203.0.113.9:51821")[:20])), true}, // the kernel uses 16 bytes of it
		"one about TCP":              {firstFragment(fragmentationNeeded(set(sent, 9, byte(packet.TCP)))), true},
		"about a quote in fragments": {firstFragment(fragmentationNeeded(sent[:0])), true},
		"the same, padded":           {append(firstFragment(fragmentationNeeded(sent[:0])), make([]byte, 60)...), true},
		"the same to a container":    {set(firstFragment(fragmentationNeeded(sent[:0])), 14+16, endpoint(pod4).Addr().AsSlice()...), false},
		"another code in fragments":  {set(firstFragment(fragmentationNeeded(sent[:0])), 14+21, 3), false},
		"about another address":      {fragmentationNeeded(about(us4, "203.0.113.9:51821")), false},
		"about a container":          {fragmentationNeeded(about(pod4, them4)), false},
		"about TCP":                  {fragmentationNeeded(set(sent, 9, byte(packet.TCP))), false},
		"about SCTP":                 {fragmentationNeeded(set(sent, 9, byte(packet.SCTP))), false},
		"another code":               {set(fragmentationNeeded(sent), 14+21, 3), false},
		"another type":               {set(fragmentationNeeded(sent), 14+20, 11), false},
		"a later fragment":           {set(fragmentationNeeded(sent), 14+6, 0, 1), false},
	}
	e.eachProgram(func(program string) {
		for name, row := range rows {
			verdict, out, events := e.receivePacket(row.in)
			want, counts := uint32(tcxNext), once()
			if row.drop {
				want, counts = tcDrop, once(EventFragmentationNeeded)
			}
			if verdict != want || !bytes.Equal(out, row.in) || !maps.Equal(events, counts) {
				t.Errorf("%s, %s: got verdict %#x, events %v, want %#x, %v", name, program, verdict, events, want, counts)
			}
		}
	})
}

// TestForgedPacketTooBigIsDropped: no message to a peer leaves by a device with the error filter, so no router sends this error there. By other devices a router
// may send it. The kernel believes it behind extension headers, from a multicast group, and whatever source the quoted packet has.
func TestForgedPacketTooBigIsDropped(t *testing.T) {
	e := newProbing(t)
	about := func(src, dst string) []byte { return data(src, dst).bytes()[14:] }
	sent := about(us6, them6)
	behind := func(types ...packet.Protocol) []byte {
		whole := tooBig(us6, sent)
		return slices.Concat(whole[:14], addIPv6Extensions(whole[14:], 1, types...))
	}
	rows := map[string]struct {
		in   []byte
		drop bool
	}{
		"about the listen port":        {tooBig(us6, sent), true},
		"about a peer's other port":    {tooBig(us6, about(us6, from(them6, 9))), true},
		"no more than the header":      {tooBig(us6, sent[:40]), true},
		"truncated in the header":      {tooBig(us6, sent[:39]), false},
		"about a foreign source":       {tooBig(us6, about("[2001:db8:9::7]:51820", them6)), true},
		"about an Echo Reply":          {tooBig(us6, set(sent, 6, byte(packet.ICMPv6))), true},
		"about a fragment":             {tooBig(us6, set(sent, 6, byte(packet.Fragment))), true},
		"about a link-local address":   {tooBig(us6, about(us6, "[fe80::7]:51820")), true},
		"to all hosts":                 {tooBig("[ff02::1]:0", sent), true},
		"behind other headers":         {behind(packet.HopByHop, packet.DestOptions, packet.Routing), true},
		"in an atomic fragment":        {behind(packet.DestOptions, packet.Fragment, packet.DestOptions), true},
		"behind too many headers":      {behind(repeat(packet.DestOptions, 9)...), true},
		"about another address":        {tooBig(us6, about(us6, "[2001:db8:2::3]:51821")), false},
		"about TCP":                    {tooBig(us6, set(sent, 6, byte(packet.TCP))), false},
		"about SCTP":                   {tooBig(us6, set(sent, 6, byte(packet.SCTP))), false},
		"to a container":               {tooBig("[2001:db8:9::7]:0", sent), false},
		"another type":                 {set(tooBig(us6, sent), 14+40, 1), false},
		"another type behind a header": {set(behind(packet.HopByHop), 14+40+16, 1), false},
		"a later fragment":             {set(behind(packet.Fragment), 14+40+3, 8), false},
		"cut in a header":              {behind(packet.HopByHop)[:14+40+4], false},
		"UDP in a fragment":            {slices.Concat(ethernet(uint16(packet.EtherTypeIPv6), 0), addIPv6Extensions(about(them6, us6), 0, packet.Fragment)), false},
	}
	e.eachProgram(func(program string) {
		for name, row := range rows {
			verdict, out, events := e.receivePacket(row.in)
			want, counts := uint32(tcxNext), once()
			if row.drop && program == "filter_errors" {
				want, counts = tcDrop, once(EventFragmentationNeeded)
			}
			if verdict != want || !bytes.Equal(out, row.in) || !maps.Equal(events, counts) {
				t.Errorf("%s, %s: got verdict %#x, events %v, want %#x, %v", name, program, verdict, events, want, counts)
			}
		}
	})
}

// eachProgram has each program that drops forged errors receive the packets of f.
func (e *probing) eachProgram(f func(program string)) {
	e.t.Helper()
	f("gather_tc")
	e.xdp = true
	f("gather_xdp")
	e.xdp = false
	spec, err := loadSpread()
	expect.NoError(e.t, err)
	m := e.maps
	var objects struct {
		Filter *ebpf.Program `ebpf:"filter_errors"`
	}
	expect.NoError(e.t, spec.LoadAndAssign(&objects, &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
		"addresses": m.Addresses, "counters": m.Counters, "settings": m.Settings, "sources": m.Sources,
	}}))
	defer objects.Filter.Close()
	e.filter = objects.Filter
	defer func() { e.filter = nil }()
	f("filter_errors")
}

// TestPacketTooBigQuotesListenPort: the kernel finds the socket of the path MTU by the quoted ports.
func TestPacketTooBigQuotesListenPort(t *testing.T) {
	s := newGather(t)
	about := func(src, dst string) []byte { return tooBig(us6, data(src, dst).bytes()[14:]) }
	sent := data(from(us6, lane), them6).bytes()[14:]
	tcp := set(sent, 6, byte(packet.TCP))
	eachGather(t, s, func(t *testing.T, run func([]byte, skb) ([]byte, bool)) {
		for _, c := range []struct {
			name     string
			in, want []byte
		}{
			{"about a lane port", about(from(us6, lane), them6), about(us6, them6)},
			{"about the last lane port", about(from(us6, 61999), them6), about(us6, them6)},
			{"about the listen port", about(us6, them6), nil},
			{"about another port", about(from(us6, 51819), them6), nil},
			{"about another peer", about(from(us6, lane), "[2001:db8:2::3]:51821"), nil},
			{"about a peer's other port", about(from(us6, lane), from(them6, 9)), nil},
			{"about TCP", tooBig(us6, tcp), nil},
			{"truncated behind the quoted addresses", tooBig(us6, sent[:42]), nil},
			{"another type", set(about(from(us6, lane), them6), 14+40, 1), nil},
		} {
			before := counters(t, s)
			out, refused := run(c.in, skb{})
			want, counts := c.want, once(EventPacketTooBig)
			if want == nil {
				want, counts = c.in, once()
			} else {
				copy(want[len(want)-104+6:], c.in[len(c.in)-104+6:][:2]) // the quoted UDP checksum stays
				setICMPv6Checksum(want[14:])
			}
			if refused || !bytes.Equal(out, want) {
				t.Errorf("%s: refused %v\n% x\n% x, want\n% x", c.name, refused, c.in, out, want)
			}
			if got := counted(t, s, before); !maps.Equal(got, counts) {
				t.Errorf("%s: counted %v, want %v", c.name, got, counts)
			}
		}
	})
}

// TestManyPriorityTagsAreDropped: the kernel removes any number of tags of VLAN 0, in front of a Fragmentation Needed, too. Packets of VLANs are left to
// their devices.
func TestManyPriorityTagsAreDropped(t *testing.T) {
	e := newProbing(t)
	tagged := func(vlan byte, tags ...uint16) []byte {
		untagged := fragmentationNeeded(data(us4, them4).bytes()[14:])
		return append(ethernet(uint16(packet.EtherTypeIPv4), vlan, tags...), untagged[14:]...)
	}
	e.eachProgram(func(program string) {
		for name, row := range map[string]struct {
			in      []byte
			verdict uint32
			counts  map[Event]uint64
		}{
			"two":            {tagged(0, 0x88a8, 0x8100), tcDrop, once(EventFragmentationNeeded)},
			"three":          {tagged(0, 0x8100, 0x8100, 0x8100), tcDrop, once(EventTooManyTags)},
			"four":           {tagged(0, 0x88a8, 0x8100, 0x88a8, 0x8100), tcDrop, once(EventTooManyTags)},
			"three of VLANs": {tagged(7, 0x88a8, 0x8100, 0x8100), tcxNext, once()},
		} {
			if verdict, _, events := e.receivePacket(row.in); verdict != row.verdict || !maps.Equal(events, row.counts) {
				t.Errorf("%s, %s: got verdict %#x, events %v, want %#x, %v", name, program, verdict, events, row.verdict, row.counts)
			}
		}
	})
}
