// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

func TestReceivedTrainIsWrittenWhole(t *testing.T) {
	r := newRig(t)
	f := flow.Flow{Ends: lanetest.In4}
	packets := lanetest.PacketsOf(t, f.Train(45, 1380))
	run, size := r.Seal(packets...)
	r.Receive(run, size)
	elements := r.Delivered()
	if len(elements) != 1 {
		t.Fatalf("got %d trains, want 1", len(elements))
	}
	samePayloads(t, lanetest.PacketsOf(t, elements...), packets)
	if s := r.Lane.Snapshot(); s.RxPackets != 45 || s.RxTrains != 1 || s.RxRuns != 1 || s.RxBytes != 45*1420 {
		t.Errorf("got stats %+v, want RxPackets 45, RxTrains 1, RxRuns 1, RxBytes %v", s, 45*1420)
	}
}

// samePayloads is lanetest.SamePackets but for the IPv4 ID, which the kernel counts up in a train, and its checksum.
func samePayloads(t *testing.T, got, want [][]byte) {
	t.Helper()
	for _, packets := range [][][]byte{got, want} {
		for i := range packets {
			packets[i] = bytes.Clone(packets[i])
			clear(packets[i][4:6])
			clear(packets[i][10:12])
		}
	}
	lanetest.SamePackets(t, got, want)
}

func TestPaddingIsNotDelivered(t *testing.T) {
	r := newRig(t)
	for n := range 40 {
		p := lanetest.In6.UDP(make([]byte, n))
		run, size := r.Seal(append(bytes.Clone(p), make([]byte, n%17)...))
		r.Receive(run, size)
		elements := r.Delivered()
		if len(elements) != 1 || !bytes.Equal(elements[0][offload.VnetHdrLen:], p) {
			t.Fatalf("delivered %x, want\n% x", elements, p)
		}
	}
}

func TestEachRejectedMessageIsCounted(t *testing.T) {
	p := lanetest.In4.UDP([]byte("good"))
	lying := bytes.Clone(p)
	binary.BigEndian.PutUint16(lying[2:], 200)
	foreign := flow.Ends{Src: netip.MustParseAddrPort("10.0.0.3:1"), Dst: lanetest.In4.Dst}.UDP(nil)
	edit := func(i int, b byte) func(*rig) []byte {
		return func(r *rig) []byte {
			msg := r.Message(r.Remote, p)
			msg[i] ^= b
			return msg
		}
	}
	plain := func(p []byte) func(*rig) []byte {
		return func(r *rig) []byte { return r.Message(r.Remote, p) }
	}
	for _, c := range []struct {
		name string
		msg  func(*rig) []byte
		want drop.Reason
	}{
		{"empty", func(*rig) []byte { return nil }, drop.RXTooShort},
		{"one byte", func(*rig) []byte { return []byte{4} }, drop.RXTooShort},
		{"31 bytes", func(r *rig) []byte { return r.Message(r.Remote, p)[:31] }, drop.RXTooShort},
		{"cut", func(r *rig) []byte { return r.Message(r.Remote, p)[:48] }, drop.RXAuth},
		{"type 0", edit(0, 4), drop.RXBadType},
		{"type 5", edit(0, 1), drop.RXBadType},
		{"reserved bit", edit(2, 0x80), drop.RXBadType},
		{"index", edit(5, 1), drop.RXUnknownIndex},
		{"counter", edit(8, 1), drop.RXAuth},
		{"counter at the limit", edit(15, 0xff), drop.RXAuth},
		{"ciphertext", edit(20, 1), drop.RXAuth},
		{"initiation of wrong length", func(*rig) []byte { return append([]byte{1}, make([]byte, 148)...) }, drop.RXBadLength},
		{"response of wrong length", func(*rig) []byte { return append([]byte{2}, make([]byte, 90)...) }, drop.RXBadLength},
		{"cookie reply of wrong length", func(*rig) []byte { return append([]byte{3}, make([]byte, 64)...) }, drop.RXBadLength},
		{"expired", func(r *rig) []byte {
			msg := r.Message(r.Remote, p)
			r.Now += peer.RejectAfterTime
			return msg
		}, drop.RXExpired},
		{"session gone", func(r *rig) []byte {
			r.Shared.Sessions.Remove(r.Keys.Local())
			return r.Message(r.Remote, p)
		}, drop.RXUnknownIndex},
		{"handshake not complete", func(r *rig) []byte {
			s, _ := r.Shared.Sessions.Lookup(r.Keys.Local())
			s.Keys.Store(nil)
			return r.Message(r.Remote, p)
		}, drop.RXUnknownIndex},
		{"inner lies about its length", plain(lying), drop.RXInnerMalformed},
		{"inner is not IP", plain(make([]byte, 64)), drop.RXInnerMalformed},
		{"inner is one byte", plain([]byte{0x45}), drop.RXInnerMalformed},
		{"inner of IPv5", plain(append([]byte{0x55}, p[1:]...)), drop.RXInnerMalformed},
		{"inner is cut", plain(lanetest.In4.UDP(make([]byte, 30))[:19]), drop.RXInnerMalformed},
		{"inner source of nobody", plain(foreign), drop.RXInnerSpoofed},
		{"TUN down", func(r *rig) []byte {
			r.TUN.SetUp(false)
			return r.Message(r.Remote, p)
		}, drop.RXTUNWrite},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			msg := c.msg(r)
			r.Receive(msg, len(msg))
			if r.Drops(c.want) != 1 || r.AllDrops() != 1 {
				t.Errorf("got %d drops for %v of %d, want 1", r.Drops(c.want), c.want, r.AllDrops())
			}
			if len(r.Delivered()) != 0 {
				t.Error("something was delivered")
			}
		})
	}
}

func TestTruncatedDatagramIsCountedAndNotOpened(t *testing.T) {
	r := newRig(t)
	run, size := r.Seal(lanetest.PacketsOf(t, (&flow.Flow{Ends: lanetest.In4}).Train(20, 500))...)
	d := &r.rx.in[0]
	d.N, d.SegSize, d.From, d.Truncated = copy(d.Buf, run), size, lanetest.There, true
	r.rx.batch(1)
	if r.Drops(drop.RXTruncated) != 20 || r.AllDrops() != 20 || len(r.Delivered()) != 0 {
		t.Errorf("%d drops of %d", r.Drops(drop.RXTruncated), r.AllDrops())
	}
}

func TestReplayedRunIsDroppedWhole(t *testing.T) {
	r := newRig(t)
	run, size := r.Seal(lanetest.PacketsOf(t, (&flow.Flow{Ends: lanetest.In4}).Train(20, 500))...)
	r.Receive(run, size)
	r.Delivered()
	r.Receive(run, size)
	if got := r.Drops(drop.RXReplay); got != 20 || len(r.Delivered()) != 0 {
		t.Errorf("got %d replays counted, want 20", got)
	}
}

func TestBadMessageDropsNoOtherInRun(t *testing.T) {
	r := newRig(t)
	packets := lanetest.PacketsOf(t, (&flow.Flow{Ends: lanetest.In4}).Train(9, 500))
	run, size := r.Seal(packets...)
	run[4*size+100] ^= 1
	r.Receive(run, size)
	samePayloads(t, lanetest.PacketsOf(t, r.Delivered()...), append(packets[:4:4], packets[5:]...))
	if r.Drops(drop.RXAuth) != 1 {
		t.Errorf("got %d authentication failures, want 1", r.Drops(drop.RXAuth))
	}
}

// TestRunMayMixSessionsAndHandshakes receives a mix that UDP GRO may coalesce, since GRO compares lengths only.
func TestRunMayMixSessionsAndHandshakes(t *testing.T) {
	r := newRig(t)
	other, _ := r.NewPeer("10.0.9.0/24")
	_, theirs := r.NewSession(other, true)
	size := wire.InitiationSize // 116 bytes of plaintext, not padded: all messages have the size of an initiation
	mine := lanetest.In4.UDP(make([]byte, size-wire.DataOverhead-28))
	its := flow.Ends{Src: netip.MustParseAddrPort("10.0.9.9:1"), Dst: lanetest.In4.Dst}.UDP(make([]byte, size-wire.DataOverhead-28))
	r.Shared.MTU.Store(int64(len(mine)))
	initiation := append([]byte{1, 0, 0, 0}, make([]byte, size-4)...)
	var run []byte
	for _, msg := range [][]byte{
		r.Message(r.Remote, mine), initiation, r.Message(theirs, its), r.Message(r.Remote, mine), make([]byte, size),
		r.Message(theirs, its),
	} {
		run = append(run, lanetest.Pad(msg, size)...)
	}
	r.Receive(run, size)
	if len(r.Control.Messages) != 1 || !bytes.Equal(r.Control.Messages[0], initiation) {
		t.Errorf("got %d handshake messages, want 1", len(r.Control.Messages))
	}
	if got := len(lanetest.PacketsOf(t, r.Delivered()...)) + int(r.Drops(drop.RXAuth)); got != 4 || r.Drops(drop.RXBadType) != 1 {
		t.Errorf("got %d data messages and %d bad ones, want 4 and 1", got, r.Drops(drop.RXBadType))
	}
}

func TestCoveringPrefixCannotSpoofMoreSpecificPeer(t *testing.T) {
	r := newRig(t)
	wide, _ := r.NewPeer("10.0.0.0/8")
	_, theirs := r.NewSession(wide, false)
	spoofed := r.Message(theirs, lanetest.In4.UDP(nil)) // 10.0.0.2 is r.peer's
	r.Receive(spoofed, len(spoofed))
	if r.Drops(drop.RXInnerSpoofed) != 1 || len(r.Delivered()) != 0 {
		t.Error("a peer with a covering prefix spoofed a more specific peer's address")
	}
	own := r.Message(theirs, flow.Ends{Src: netip.MustParseAddrPort("10.0.0.3:1"), Dst: lanetest.In4.Dst}.UDP(nil))
	r.Receive(own, len(own))
	if len(r.Delivered()) != 1 {
		t.Error("the peer's own address was refused")
	}
}

func TestOnlyAuthenticatedMessagesRoam(t *testing.T) {
	elsewhere := underlay.Endpoint{Dst: netip.MustParseAddrPort("198.51.100.1:999"), Src: lanetest.There.Src}
	otherSource := underlay.Endpoint{Dst: lanetest.There.Dst, Src: netip.MustParseAddr("192.0.2.9")}
	for _, c := range []struct {
		name string
		from underlay.Endpoint
		msg  func(*rig) []byte
		want int
	}{
		{"data", elsewhere, func(r *rig) []byte { return r.Message(r.Remote, lanetest.In4.UDP(nil)) }, 1},
		{"keepalive", elsewhere, func(r *rig) []byte { return r.Message(r.Remote, nil) }, 1},
		{"our other address", otherSource, func(r *rig) []byte { return r.Message(r.Remote, nil) }, 1},
		{"the same endpoint", lanetest.There, func(r *rig) []byte { return r.Message(r.Remote, nil) }, 0},
		{"forged", elsewhere, func(r *rig) []byte { return forged(r.Message(r.Remote, nil)) }, 0},
		{"replayed", elsewhere, func(r *rig) []byte {
			msg := r.Message(r.Remote, nil)
			r.Receive(msg, len(msg))
			return msg
		}, 0},
	} {
		r := newRig(t)
		msg := c.msg(r)
		r.ReceiveFrom(c.from, msg, len(msg))
		if len(r.Owner.Roams) != c.want {
			t.Errorf("%s: roamed %d times, want %d", c.name, len(r.Owner.Roams), c.want)
		}
	}
}

func TestKeepaliveIsCountedAndNotDelivered(t *testing.T) {
	r := newRig(t)
	msg := r.Message(r.Remote, nil)
	r.Receive(msg, len(msg))
	rx, _ := r.Peer.Traffic()
	if len(r.Delivered()) != 0 || r.AllDrops() != 0 || rx != wire.KeepaliveSize {
		t.Errorf("%d bytes received, %d drops", rx, r.AllDrops())
	}
	if got, want := r.Peer.Packets(), (lane.PeerPackets{Rx: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestRejectedMessagesCountForTheirPeer(t *testing.T) {
	r := newRig(t)
	spoofed := r.Message(r.Remote, lanetest.Out4.UDP(nil))
	forged := append(bytes.Clone(spoofed[:len(spoofed)-1]), 0xff)
	for _, msg := range [][]byte{spoofed, forged, r.Message(r.Remote, lanetest.In4.UDP(nil))} {
		r.Receive(msg, len(msg))
	}
	if got, want := r.Peer.Packets(), (lane.PeerPackets{Rx: 2, RxDrops: 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	r.Owner.Refusal = drop.HelloUnwanted
	hello := r.Message(r.Remote, wire.AppendHello(nil, &wire.Hello{}))
	r.Receive(hello, len(hello))
	if got, want := r.Peer.Packets(), (lane.PeerPackets{Rx: 3, RxDrops: 3}); got != want || r.Drops(drop.HelloUnwanted) != 1 {
		t.Errorf("with a hello that is unwanted: got %+v, want %+v", got, want)
	}
}

// forged returns a message with a wrong tag.
func forged(msg []byte) []byte {
	msg[len(msg)-1] ^= 1
	return msg
}

func TestFirstDataMessageConfirmsSession(t *testing.T) {
	r := newRig(t)
	ours, theirs := r.NewSession(r.Peer, false)
	r.Peer.Unconfirmed.Store(ours)
	old := r.Message(r.Remote, lanetest.In4.UDP(nil))
	r.Receive(old, len(old))
	if len(r.Owner.Confirmed) != 0 {
		t.Fatal("a message of the old session confirmed the new one")
	}
	wrong := forged(r.Message(theirs, nil))
	r.Receive(wrong, len(wrong))
	if len(r.Owner.Confirmed) != 0 {
		t.Fatal("a forged message confirmed a session")
	}
	msg := r.Message(theirs, nil)
	r.Receive(msg, len(msg))
	if len(r.Owner.Confirmed) != 1 || r.Owner.Confirmed[0] != ours {
		t.Errorf("got confirmed sessions %v, want length 1", r.Owner.Confirmed)
	}
}

func TestReceivingRequestsRekeyBeforeSessionExpires(t *testing.T) {
	for _, c := range []struct {
		initiator bool
		age       time.Duration
		want      int
	}{{true, 165*time.Second - 1, 0}, {true, 165 * time.Second, 1}, {false, 179 * time.Second, 0}} {
		r := newRig(t)
		_, theirs := r.NewSession(r.Peer, c.initiator)
		msg := r.Message(theirs, nil)
		r.Now += int64(c.age)
		r.Receive(msg, len(msg))
		if r.Owner.Rekeys != c.want {
			t.Errorf("initiator %v, age %v: asked %d times, want %d", c.initiator, c.age, r.Owner.Rekeys, c.want)
		}
	}
}

func TestHandshakeMessagesReachControlWithSender(t *testing.T) {
	r := newRig(t)
	r.Control.Reason = drop.HSQueueFull
	for kind, size := range map[byte]int{1: wire.InitiationSize, 2: wire.ResponseSize, 3: wire.CookieReplySize} {
		msg := append([]byte{kind, 0, 0, 0}, make([]byte, size-4)...)
		r.Receive(msg, len(msg))
	}
	if len(r.Control.Messages) != 3 || r.Control.From[2] != lanetest.There || r.Drops(drop.HSQueueFull) != 3 {
		t.Errorf("%d messages, %d counted", len(r.Control.Messages), r.Drops(drop.HSQueueFull))
	}
}

func TestPartsOfExchangesReachTheSlowPath(t *testing.T) {
	r := newRig(t)
	ours, theirs := r.NewSession(r.Peer, false)
	part := wire.AppendKEMPart(nil, wire.KEMKey, make([]byte, wire.KEMKeySize), 1)
	msg := r.Message(theirs, part)
	r.Receive(msg, len(msg))
	if got := r.Owner.Parts; len(got) != 1 || got[0].Keys != ours || got[0].Plain[:len(part)] != string(part) || len(r.Owner.Hellos) != 0 {
		t.Errorf("got %d parts and %d hellos, want the part with the key pair of its session", len(got), len(r.Owner.Hellos))
	}
}

func TestRestrictedSessionAcceptsNoData(t *testing.T) {
	r := newRig(t)
	ours, theirs := r.NewSession(r.Peer, false)
	ours.Restrict()
	for _, plain := range [][]byte{lanetest.In4.UDP(nil), nil, wire.AppendHello(nil, &wire.Hello{})} {
		msg := r.Message(theirs, plain)
		r.Receive(msg, len(msg))
	}
	if n := r.Drops(drop.RXNotPostQuantum); n != 1 || len(r.Delivered()) != 0 || len(r.Owner.Hellos) != 1 {
		t.Errorf("got %d drops and %d hellos, want 1 and 1", n, len(r.Owner.Hellos))
	}
}
