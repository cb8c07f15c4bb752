// SPDX-License-Identifier: Apache-2.0

package send

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// icmpErrorsOf returns the packets that the engine wrote to the TUN, as ICMP messages.
func (r *rig) icmpErrors() (all []*icmp.Message) {
	r.TB.Helper()
	for _, p := range lanetest.PacketsOf(r.TB, r.Delivered()...) {
		proto, header := int(packet.ICMP), packet.IPv4HeaderLen
		if packet.VersionOf(p) == packet.Version6 {
			proto, header = int(packet.ICMPv6), packet.IPv6HeaderLen
		}
		m, err := icmp.ParseMessage(proto, p[header:])
		if err != nil {
			r.TB.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// withoutDF clears DF in a train of IPv4.
func withoutDF(train []byte) []byte {
	h := packet.IPv4(train[offload.VnetHdrLen:])
	h[6] &^= packet.IPv4DontFragment >> 8
	h.SetChecksum(0)
	h.SetChecksum(packet.Checksum(h[:h.HeaderLen()]))
	return train
}

// quoteOf returns the MTU and the quoted packet of an error.
func quoteOf(t *testing.T, m *icmp.Message) (mtu int, quote []byte) {
	t.Helper()
	raw, err := m.Marshal(nil)
	if err != nil {
		t.Fatal(err)
	}
	switch body := m.Body.(type) {
	case *icmp.PacketTooBig:
		return body.MTU, body.Data
	case *icmp.DstUnreach:
		return int(raw[6])<<8 | int(raw[7]), body.Data
	}
	t.Fatalf("got %v", m)
	return 0, nil
}

func TestOversizePacketIsAnsweredWithItsFirstSegment(t *testing.T) {
	payload := make([]byte, 4000)
	for _, c := range []struct {
		name  string
		train []byte
		limit int
		n     uint64
	}{
		{"IPv4", flow.WithVnetHeader(lanetest.Out4.UDP(payload[:1300])), 1300, 1},
		{"IPv6", flow.WithVnetHeader(lanetest.Out6.UDP(payload[:1300])), 1300, 1},
		{"IPv6 below the minimum", flow.WithVnetHeader(lanetest.Out6.UDP(payload[:1300])), 1000, 1},
		{"IPv4 TCP train", lanetest.Out4.TCPTrain(7, 1400, payload), 1400, 3},
		{"IPv6 TCP train", lanetest.Out6.TCPTrain(7, 1400, payload), 1400, 3},
		{"IPv4 UDP train", lanetest.Out4.UDPTrain(1400, payload), 1400, 3},
		{"IPv6 UDP train", lanetest.Out6.UDPTrain(1400, payload), 1400, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.Peer.SetPathMTU(c.limit)
			r.transmit(c.train)
			if got := r.Drops(drop.TXPacketTooBig); got != c.n || r.AllDrops() != c.n || len(r.Sent()) != 0 {
				t.Errorf("got %d of %d drops, want %d", got, r.AllDrops(), c.n)
			}
			if got := r.Peer.Packets(); got != (lane.PeerPackets{TxDrops: c.n}) {
				t.Errorf("the peer's: got %+v, want %d drops", got, c.n)
			}
			all := r.icmpErrors()
			if len(all) != 1 {
				t.Fatalf("got %d errors, want 1", len(all))
			}
			first := lanetest.PacketsOf(t, c.train)[0]
			want := max(c.limit, 0)
			if packet.VersionOf(first) == packet.Version6 {
				want = max(c.limit, packet.IPv6MinMTU)
			}
			_, quote := quoteOf(t, all[0])
			if len(quote) < 500 || !bytes.Equal(quote, first[:len(quote)]) {
				t.Errorf("the error does not quote the first packet: % x", quote)
			}
			checkMTU(t, r, c.train, want)
		})
	}
}

// checkMTU sends a train again and checks the MTU in the bytes of the error.
func checkMTU(t *testing.T, r *rig, train []byte, want int) {
	t.Helper()
	r.transmit(train)
	p := lanetest.PacketsOf(t, r.Delivered()...)[0]
	at := packet.IPv4HeaderLen
	if packet.VersionOf(p) == packet.Version6 {
		at = packet.IPv6HeaderLen
	}
	if got := int(p[at+6])<<8 | int(p[at+7]); got != want {
		t.Errorf("got MTU %d, want %d", got, want)
	}
}

func TestIPv6MinimumIsSentBelowLimit(t *testing.T) {
	r := newRig(t)
	r.Peer.SetPathMTU(1000)
	trains := [][]byte{flow.WithVnetHeader(lanetest.Out6.UDP(make([]byte, 1280-48))), lanetest.Out6.TCPTrain(0, 1280-60, make([]byte, 5000))}
	r.transmit(trains...)
	lanetest.SamePackets(t, lanetest.Unpadded(t, r.Sent()), lanetest.PacketsOf(t, trains...))
	if r.AllDrops() != 0 || len(r.icmpErrors()) != 0 {
		t.Error("a packet of 1280 bytes was refused")
	}
}

// reassembled joins the fragments among IPv4 packets that were sent in order.
func reassembled(t *testing.T, packets [][]byte, limit int) (all [][]byte) {
	t.Helper()
	var whole []byte
	for _, p := range packets {
		h, err := ipv4.ParseHeader(p)
		if err != nil || len(p) > limit {
			t.Fatalf("packet of %d bytes, want at most %d: %v", len(p), limit, err)
		}
		if h.FragOff == 0 {
			whole = bytes.Clone(p[:h.Len])
		}
		if at := len(whole) - packet.IPv4HeaderLen; at != h.FragOff*8 {
			t.Fatalf("got offset %d, want %d", h.FragOff*8, at)
		}
		whole = append(whole, p[h.Len:]...)
		if h.Flags&ipv4.MoreFragments != 0 {
			continue
		}
		ip := packet.IPv4(whole)
		ip[6], ip[7] = 0, 0
		ip.SetTotalLen(len(whole))
		ip.SetChecksum(0)
		ip.SetChecksum(packet.Checksum(ip[:packet.IPv4HeaderLen]))
		all = append(all, whole)
		whole = nil
	}
	return all
}

// TestPacketsWithoutDFAreFragmentedInOrder mixes trains and packets that fit with those that do not.
func TestPacketsWithoutDFAreFragmentedInOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	r := newRig(t)
	for range 50 {
		limit := packet.IPv4MinMTU + rng.IntN(1400)
		r.Peer.SetPathMTU(limit)
		var trains [][]byte
		for range 1 + rng.IntN(20) {
			payload := make([]byte, 8+rng.IntN(3000))
			for i := range payload {
				payload[i] = byte(rng.Uint32())
			}
			train := flow.WithVnetHeader(lanetest.Out4.UDP(payload))
			switch size := 8 + rng.IntN(1400); rng.IntN(3) {
			case 0:
				train = lanetest.Out4.UDPTrain(size, payload)
			case 1:
				train = lanetest.Out4.TCPTrain(1, size, payload)
			}
			trains = append(trains, withoutDF(train))
		}
		r.transmit(trains...)
		lanetest.SamePackets(t, reassembled(t, lanetest.Unpadded(t, r.Sent()), limit), lanetest.PacketsOf(t, trains...))
	}
	if r.AllDrops() != 0 || len(r.icmpErrors()) != 0 {
		t.Errorf("got %d drops, want 0", r.AllDrops())
	}
}

func TestPathMTUAppliesAtRunTime(t *testing.T) {
	r := newRig(t)
	train := flow.WithVnetHeader(lanetest.Out4.UDP(make([]byte, 1300)))
	for _, c := range []struct{ limit, sent int }{{0, 1}, {1328, 1}, {1327, 0}, {1400, 1}, {1000, 0}, {0, 1}} {
		r.Peer.SetPathMTU(c.limit)
		if r.transmit(train); len(r.Sent()) != c.sent {
			t.Errorf("limit %d: got other than %d packets sent", c.limit, c.sent)
		}
	}
}

func TestPaddingDoesNotExceedPathMTU(t *testing.T) {
	r := newRig(t)
	r.Peer.SetPathMTU(1301)
	r.transmit(flow.WithVnetHeader(lanetest.Out4.UDP(make([]byte, 1301-28))), lanetest.Out4.TCPTrain(0, 1301-40, make([]byte, 3000)))
	plain := r.Sent()
	if len(plain) != 4 {
		t.Fatalf("got %d packets, want 4", len(plain))
	}
	for _, p := range plain {
		if len(p) > 1301 {
			t.Errorf("got a plaintext of %d bytes, want at most 1301", len(p))
		}
	}
}

func TestUndeliverablePacketIsAnsweredWithHostUnreachable(t *testing.T) {
	for name, prepare := range map[string]func(*rig){
		"no peer": func(r *rig) {
			r.Shared.Routes.Update(func(e *peer.Editor[*lane.Peer]) { e.RemoveOwner(r.Peer) })
		},
		"no endpoint": func(r *rig) { r.Peer.Endpoint.Store(nil) },
	} {
		r := newRig(t)
		prepare(r)
		r.transmit(flow.WithVnetHeader(lanetest.Out4.UDP(nil)), lanetest.Out6.TCPTrain(0, 100, make([]byte, 300)))
		all := r.icmpErrors()
		if len(all) != 2 {
			t.Fatalf("%s: got %d errors, want 2", name, len(all))
		}
		if m := all[0]; m.Type != ipv4.ICMPTypeDestinationUnreachable || m.Code != 1 {
			t.Errorf("%s: got %v/%d", name, m.Type, m.Code)
		}
		if m := all[1]; m.Type != ipv6.ICMPTypeDestinationUnreachable || m.Code != 3 {
			t.Errorf("%s: got %v/%d", name, m.Type, m.Code)
		}
	}
}

// TestHostUnreachableIsLimited: packets that are never answered do not count as limited, and Packet Too Big has no limit.
func TestHostUnreachableIsLimited(t *testing.T) {
	r := newRig(t)
	endpoint := r.Peer.Endpoint.Swap(nil)
	train := flow.WithVnetHeader(lanetest.Out4.UDP(make([]byte, 1300)))
	const packets = 3 * icmpBurst
	for range packets {
		r.transmit(train)
	}
	if n := len(r.icmpErrors()); n != icmpBurst {
		t.Errorf("got %d errors, want %d", n, icmpBurst)
	}
	r.Now += int64(10 * time.Millisecond)
	for range packets {
		r.transmit(train)
	}
	if n := len(r.icmpErrors()); n != 10 {
		t.Errorf("after 10 ms: got %d errors, want 10", n)
	}
	broadcast := flow.Ends{Src: netip.MustParseAddrPort("255.255.255.255:1"), Dst: lanetest.Out4.Dst}
	r.transmit(flow.WithVnetHeader(broadcast.UDP(nil)))
	s := r.Lane.Snapshot()
	if s.ICMPErrors != icmpBurst+10 || s.ICMPLimited != 2*packets-s.ICMPErrors {
		t.Errorf("got %d sent, %d limited", s.ICMPErrors, s.ICMPLimited)
	}
	r.Peer.Endpoint.Store(endpoint)
	r.Peer.SetPathMTU(1000)
	for range packets {
		r.transmit(train)
	}
	if n := len(r.icmpErrors()); n != packets || r.Drops(drop.TXPacketTooBig) != packets {
		t.Errorf("got %d Packet Too Big and %d drops, want %d of each", n, r.Drops(drop.TXPacketTooBig), packets)
	}
}

func TestUnanswerablePacketIsOnlyDropped(t *testing.T) {
	r := newRig(t)
	r.Peer.SetPathMTU(1000)
	broadcast := flow.Ends{Src: netip.MustParseAddrPort("255.255.255.255:1"), Dst: lanetest.Out4.Dst}
	r.transmit(flow.WithVnetHeader(broadcast.UDP(make([]byte, 1300))))
	if r.Drops(drop.TXPacketTooBig) != 1 || len(r.icmpErrors()) != 0 {
		t.Error("a packet from a broadcast address was answered")
	}
}

// TestStagedPacketHasLimitOfItsSending changes the limit while a packet waits for a session.
func TestStagedPacketHasLimitOfItsSending(t *testing.T) {
	r := newRig(t)
	train := flow.WithVnetHeader(lanetest.Out4.UDP(make([]byte, 1300)))
	r.Peer.Current.Store(nil)
	r.transmit(train)
	r.Peer.SetPathMTU(1000)
	r.newSlow(nil).Transmit(r.Peer, r.Keys, r.Owner.Staged[0])
	if r.Drops(drop.TXPacketTooBig) != 1 || len(r.icmpErrors()) != 1 {
		t.Error("a staged packet was sent, or its sender got no error")
	}
}

func TestOversizePacketsAllocateNothing(t *testing.T) {
	r := newRig(t)
	r.Conn.Silent = true
	r.Peer.SetPathMTU(500)
	elements := [][]byte{
		flow.WithVnetHeader(lanetest.Out4.UDP(make([]byte, 1300))), lanetest.Out6.TCPTrain(0, 1300, make([]byte, 9000)),
		withoutDF(flow.WithVnetHeader(lanetest.Out4.UDP(make([]byte, 1300)))), withoutDF(lanetest.Out4.TCPTrain(0, 1300, make([]byte, 9000))),
	}
	buf := make([]byte, 1<<16)
	run := func() {
		r.Now += int64(time.Second)
		r.transmit(elements...)
		for r.TUN.TryReceive(0, buf) > 0 {
		}
	}
	run()
	if n := testing.AllocsPerRun(50, run); n != 0 {
		t.Errorf("got %v allocations per batch, want 0", n)
	}
}
