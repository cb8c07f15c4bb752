// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"bytes"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// spreadRow is a packet with its expected result want; nil: unchanged.
type spreadRow struct {
	name   string
	in     []byte
	ctx    skb
	want   []byte
	counts map[Event]uint64
}

// spreadRows has a row per branch of spread, without those of the choice of a lane.
func spreadRows() []spreadRow {
	m4, m6 := data(us4, them4), data(us6, them6)
	l4, l6 := data(from(us4, lane), them4), data(from(us6, lane), them6)
	done := once(EventSpread)
	row := func(name string, in, want datagram, change func(*datagram)) spreadRow {
		return spreadRow{name, in.with(change).bytes(), skb{}, want.with(change).bytes(), done}
	}
	alone := func(name string, in []byte, events ...Event) spreadRow {
		return spreadRow{name, in, skb{}, nil, once(events...)}
	}
	sized := func(kind byte, n int) []byte {
		return m4.with(func(d *datagram) { d.payload = message(kind, n) }).bytes()
	}
	reserved := m4.with(func(d *datagram) { d.payload[3] = 1 }).bytes()
	m4.payload = message(4, 96) // with() shares it
	rows := []spreadRow{
		row("v4", m4, l4, func(*datagram) {}),
		row("v4 without a checksum", m4, l4, func(d *datagram) { d.checksum = none }),
		row("v4 whose checksum becomes 0", m4, l4, func(d *datagram) { d.payload = checksumZeroFlow(from(us4, lane), them4) }),
		row("v4 whose checksum was 0", m4, l4, func(d *datagram) { d.payload = checksumZeroFlow(us4, them4) }),
		row("v4 with options", m4, l4, func(d *datagram) { d.options = 1 }),
		row("v4 with all options", m4, l4, func(d *datagram) { d.options = 10 }),
		row("v4 with a priority tag", m4, l4, func(d *datagram) { d.tags = []uint16{0x8100} }),
		row("v4 with two priority tags and options", m4, l4, func(d *datagram) { d.tags, d.options = []uint16{0x88a8, 0x8100}, 10 }),
		row("v4 of the least size", m4, l4, func(d *datagram) { d.payload = message(4, 33) }),
		row("v6", m6, l6, func(*datagram) {}),
		row("v6 whose checksum becomes 0", m6, l6, func(d *datagram) { d.payload = checksumZeroFlow(from(us6, lane), them6) }),
		row("v6 without a checksum", m6, l6, func(d *datagram) { d.checksum = none }),
		row("v6 with two priority tags", m6, l6, func(d *datagram) { d.tags = []uint16{0x8100, 0x8100} }),

		alone("an initiation", sized(1, 148)), alone("a response", sized(2, 92)), alone("a cookie", sized(3, 64)),
		alone("no type", sized(0, 96)), alone("type 5", sized(5, 96)), alone("a reserved byte", reserved),
		alone("a keepalive", sized(4, 32)), alone("nothing", sized(4, 0)), alone("three bytes", sized(4, 3)),
		alone("three VLAN tags", m4.with(func(d *datagram) { d.tags = []uint16{0x8100, 0x8100, 0x8100} }).bytes()),
		alone("a VLAN's packet", m4.with(func(d *datagram) { d.tags, d.vlan = []uint16{0x8100}, 7 }).bytes()),
		alone("a v6 packet of two VLANs", m6.with(func(d *datagram) { d.tags, d.vlan = []uint16{0x88a8, 0x8100}, 7 }).bytes()),
		alone("another device's message", data(from(us4, 51819), them4).bytes()),
		alone("a message from a lane port", data(from(us4, lane), them4).bytes()),
		alone("another peer's address", data(us4, "203.0.113.3:51821").bytes(), EventNoPeer),
		alone("another peer's port", data(us4, from(them4, 51822)).bytes(), EventNoPeer),
		alone("another v6 address", data(us6, "[2001:db8:2::3]:51821").bytes(), EventNoPeer),
		alone("another peer's handshake", data(us4, "203.0.113.3:51821").with(func(d *datagram) { d.payload = message(1, 148) }).bytes()),
	}
	rows = append(rows, invalidRows(m4.bytes(), m6.bytes(), EventEgressMalformed)...)
	for name, in := range firstFragments(m4.bytes(), m6.bytes()) {
		rows = append(rows, alone(name, in, EventEgressFragment))
	}
	return rows
}

// invalidRows returns invalid variants of valid packets, which neither spread nor gather changes.
func invalidRows(v4, v6 []byte, malformed Event) []spreadRow {
	const ip, udp4, udp6 = 14, 14 + 20, 14 + 40
	alone := func(name string, in []byte, events ...Event) spreadRow {
		return spreadRow{name, in, skb{}, nil, once(events...)}
	}
	extended := func(types ...packet.Protocol) []byte { return extendedBy(v6, types...) }
	fragmented := extended(packet.Fragment)
	return []spreadRow{
		alone("v4 later fragment", set(v4, ip+6, 0x20, 9)),
		alone("v4 last fragment", set(v4, ip+6, 0, 9)),
		alone("v6 later fragment", set(fragmented, udp6+3, 9)),
		alone("v6 fragment of TCP", set(fragmented, udp6, 6)),
		alone("v6 with an extension header", extended(packet.HopByHop)),
		alone("v6 with an extension header before a fragment's", extended(packet.DestOptions, packet.Fragment)),
		alone("v4 TCP", set(v4, ip+9, 6)), alone("v6 TCP", set(v6, ip+6, 6)),
		alone("ARP", set(v4, 12, 8, 6)), alone("an 802.3 length", set(v4, 12, 0, 96)),
		alone("v6 called v4", set(v4, ip, 0x65)), alone("v4 called v6", set(v6, ip, 0x45)),
		alone("a v4 header too short", set(v4, ip, 0x44)),
		alone("a v4 header too short, with ports", set(set(v4, ip, 0x44), ip+16, 0xca, 0x6c, 0xca, 0x6c)),
		alone("UDP length below its header", set(v4, udp4+4, 0, 7), malformed),
		alone("UDP length 0", set(v6, udp6+4, 0, 0), malformed),
		alone("UDP length behind v4's end", set(v4, udp4+5, 105), malformed),
		alone("UDP length behind v6's end", set(v6, udp6+5, 105), malformed),
		alone("v4 length below its header", set(v4, ip+2, 0, 8), malformed),
		alone("v6 length 0", set(v6, ip+4, 0, 0), malformed),
	}
}

// extendedBy returns an IPv6 packet with extension headers.
func extendedBy(v6 []byte, types ...packet.Protocol) []byte {
	return slices.Concat(v6[:14], addIPv6Extensions(v6[14:], 0, types...))
}

// firstFragments returns the first fragments of packets: the whole packet that is called one, and only its first bytes.
func firstFragments(v4, v6 []byte) map[string][]byte {
	const ip, udp6 = 14, 14 + 40
	fragmented := extendedBy(v6, packet.Fragment)
	return map[string][]byte{
		"v4 first fragment": set(v4, ip+6, 0x20, 0), "v6 first fragment": set(fragmented, udp6+3, 1), "v6 atomic fragment": fragmented,
		"v4 short first fragment": set(set(v4, ip+6, 0x20, 0), ip+2, 0, 20+24)[:ip+20+24],
		"v6 short first fragment": set(set(fragmented, udp6+3, 1), ip+4, 0, 8+24)[:udp6+8+24],
	}
}

func TestSpreadChangesOnlyDataMessagesOfTunnels(t *testing.T) {
	s := newSpread(t, SpreadOptions{L2: true})
	for _, row := range spreadRows() {
		clearFlows(t, s)
		before := counters(t, s)
		out, _, refused := runTC(t, s.Egress(), row.in, row.ctx)
		if refused {
			t.Errorf("%s: the kernel rejects the packet", row.name)
			continue
		}
		want, counts := row.in, maps.Clone(row.counts)
		if row.want != nil {
			want, counts[EventFlowNew] = row.want, 1
		}
		if !bytes.Equal(out, want) {
			t.Errorf("%s:\n% x\n% x, want\n% x", row.name, row.in, out, want)
		}
		if got := counted(t, s, before); !maps.Equal(got, counts) {
			t.Errorf("%s: counted %v, want %v", row.name, got, counts)
		}
	}
}

func TestSpreadHandlesPacketsWithoutEthernetHeader(t *testing.T) {
	s := newSpread(t, SpreadOptions{})
	for _, ends := range [][2]string{{us4, them4}, {us6, them6}} {
		in, want := data(ends[0], ends[1]).bytes(), data(from(ends[0], lane), ends[1]).bytes()
		if out, _, _ := runTC(t, s.Egress(), in[14:], skb{}); !bytes.Equal(out, want[14:]) {
			t.Errorf("% x\n% x, want\n% x", in[14:], out, want[14:])
		}
		if out, _, _ := runTC(t, s.Egress(), in, skb{}); !bytes.Equal(out, in) {
			t.Errorf("an Ethernet header became % x", out)
		}
	}
}

// forEachTruncation runs f on packets of all kinds, truncated to every length that the kernel accepts for a test.
func forEachTruncation(f func(in []byte) (refused bool)) (runs int) {
	for _, in := range [][]byte{
		data(us4, them4).bytes(), data(us6, them6).bytes(),
		data(us4, them4).with(func(d *datagram) { d.tags, d.options = []uint16{0x88a8, 0x8100}, 10 }).bytes(),
		data(from(them4, gathers), from(us4, lane)).bytes(), data(from(them6, gathers), us6).bytes(),
	} {
		for n := 14; n < len(in); n++ {
			if !f(clone(in[:n])) {
				runs++
			}
		}
	}
	return runs
}

func TestSpreadLeavesTruncatedPacketsUnchanged(t *testing.T) {
	for _, o := range []SpreadOptions{{L2: true}, {}} {
		s := newSpread(t, o)
		runs := forEachTruncation(func(in []byte) bool {
			if !o.L2 && len(in) > 28 {
				in = in[14:]
			}
			out, _, refused := runTC(t, s.Egress(), in, skb{})
			if !refused && !bytes.Equal(out, in) {
				t.Errorf("% x became\n% x", in, out)
			}
			return refused
		})
		if runs < 400 {
			t.Errorf("%d runs", runs)
		}
		if got := counted(t, s, Counters{}); got[EventSpread] != 0 || got[EventEgressMalformed] == 0 {
			t.Errorf("unexpected counters %v", got)
		}
	}
}

func TestSpreadSkipsPeersWithoutLanes(t *testing.T) {
	s := newSpread(t, SpreadOptions{L2: true})
	s.setOpenPeer(t, Peer{Tunnel: 51820, Endpoint: netip.MustParseAddrPort(them4)})
	in := data(us4, them4).bytes()
	if out, _, _ := runTC(t, s.Egress(), in, skb{}); !bytes.Equal(out, in) {
		t.Errorf("% x became\n% x", in, out)
	}
	if got := counted(t, s, Counters{}); len(got) != 0 {
		t.Errorf("unexpected counters %v", got)
	}
}
