// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

func mustPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func TestReceivedTrainIsWrittenWhole(t *testing.T) {
	r := newRig(t)
	f := flow.Flow{Ends: in4}
	packets := packetsOf(t, f.Train(45, 1380))
	run, size := r.seal(packets...)
	r.receive(run, size)
	elements := r.delivered()
	if len(elements) != 1 {
		t.Fatalf("got %d trains, want 1", len(elements))
	}
	samePayloads(t, packetsOf(t, elements...), packets)
	if s := r.engine.Stats().Lanes[0]; s.RxPackets != 45 || s.RxTrains != 1 || s.RxRuns != 1 || s.RxBytes != 45*1420 {
		t.Errorf("got stats %+v, want RxPackets 45, RxTrains 1, RxRuns 1, RxBytes %v", s, 45*1420)
	}
}

// samePayloads is samePackets but for the IPv4 ID, which the kernel counts up in a train, and its checksum.
func samePayloads(t *testing.T, got, want [][]byte) {
	t.Helper()
	for _, packets := range [][][]byte{got, want} {
		for i := range packets {
			packets[i] = bytes.Clone(packets[i])
			clear(packets[i][4:6])
			clear(packets[i][10:12])
		}
	}
	samePackets(t, got, want)
}

func TestPaddingIsNotDelivered(t *testing.T) {
	r := newRig(t)
	for n := range 40 {
		p := in6.UDP(make([]byte, n))
		run, size := r.seal(append(bytes.Clone(p), make([]byte, n%17)...))
		r.receive(run, size)
		elements := r.delivered()
		if len(elements) != 1 || !bytes.Equal(elements[0][offload.VnetHdrLen:], p) {
			t.Fatalf("delivered %x, want\n% x", elements, p)
		}
	}
}

func TestEachRejectedMessageIsCounted(t *testing.T) {
	p := in4.UDP([]byte("good"))
	lying := bytes.Clone(p)
	binary.BigEndian.PutUint16(lying[2:], 200)
	foreign := flow.Ends{Src: mustPort("10.0.0.3:1"), Dst: in4.Dst}.UDP(nil)
	edit := func(i int, b byte) func(*rig) []byte {
		return func(r *rig) []byte {
			msg := r.message(r.remote, p)
			msg[i] ^= b
			return msg
		}
	}
	plain := func(p []byte) func(*rig) []byte {
		return func(r *rig) []byte { return r.message(r.remote, p) }
	}
	for _, c := range []struct {
		name string
		msg  func(*rig) []byte
		want drop.Reason
	}{
		{"empty", func(*rig) []byte { return nil }, drop.RXTooShort},
		{"one byte", func(*rig) []byte { return []byte{4} }, drop.RXTooShort},
		{"31 bytes", func(r *rig) []byte { return r.message(r.remote, p)[:31] }, drop.RXTooShort},
		{"cut", func(r *rig) []byte { return r.message(r.remote, p)[:48] }, drop.RXAuth},
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
			msg := r.message(r.remote, p)
			r.now += peer.RejectAfterTime
			return msg
		}, drop.RXExpired},
		{"session gone", func(r *rig) []byte {
			r.engine.Sessions.Remove(r.keys.Local())
			return r.message(r.remote, p)
		}, drop.RXUnknownIndex},
		{"handshake not complete", func(r *rig) []byte {
			s, _ := r.engine.Sessions.Lookup(r.keys.Local())
			s.Keys.Store(nil)
			return r.message(r.remote, p)
		}, drop.RXUnknownIndex},
		{"inner lies about its length", plain(lying), drop.RXInnerMalformed},
		{"inner is not IP", plain(make([]byte, 64)), drop.RXInnerMalformed},
		{"inner is one byte", plain([]byte{0x45}), drop.RXInnerMalformed},
		{"inner of IPv5", plain(append([]byte{0x55}, p[1:]...)), drop.RXInnerMalformed},
		{"inner is cut", plain(in4.UDP(make([]byte, 30))[:19]), drop.RXInnerMalformed},
		{"inner source of nobody", plain(foreign), drop.RXInnerSpoofed},
		{"TUN down", func(r *rig) []byte {
			r.tun.SetUp(false)
			return r.message(r.remote, p)
		}, drop.RXTUNWrite},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			msg := c.msg(r)
			r.receive(msg, len(msg))
			if r.drops(c.want) != 1 || r.allDrops() != 1 {
				t.Errorf("got %d drops for %v of %d, want 1", r.drops(c.want), c.want, r.allDrops())
			}
			if len(r.delivered()) != 0 {
				t.Error("something was delivered")
			}
		})
	}
}

func TestTruncatedDatagramIsCountedAndNotOpened(t *testing.T) {
	r := newRig(t)
	run, size := r.seal(packetsOf(t, (&flow.Flow{Ends: in4}).Train(20, 500))...)
	d := &r.rx.in[0]
	d.N, d.SegSize, d.From, d.Truncated = copy(d.Buf, run), size, there, true
	r.rx.batch(1)
	if r.drops(drop.RXTruncated) != 20 || r.allDrops() != 20 || len(r.delivered()) != 0 {
		t.Errorf("%d drops of %d", r.drops(drop.RXTruncated), r.allDrops())
	}
}

func TestReplayedRunIsDroppedWhole(t *testing.T) {
	r := newRig(t)
	run, size := r.seal(packetsOf(t, (&flow.Flow{Ends: in4}).Train(20, 500))...)
	r.receive(run, size)
	r.delivered()
	r.receive(run, size)
	if got := r.drops(drop.RXReplay); got != 20 || len(r.delivered()) != 0 {
		t.Errorf("got %d replays counted, want 20", got)
	}
}

func TestBadMessageDropsNoOtherInRun(t *testing.T) {
	r := newRig(t)
	packets := packetsOf(t, (&flow.Flow{Ends: in4}).Train(9, 500))
	run, size := r.seal(packets...)
	run[4*size+100] ^= 1
	r.receive(run, size)
	samePayloads(t, packetsOf(t, r.delivered()...), append(packets[:4:4], packets[5:]...))
	if r.drops(drop.RXAuth) != 1 {
		t.Errorf("got %d authentication failures, want 1", r.drops(drop.RXAuth))
	}
}

// TestRunMayMixSessionsAndHandshakes receives a mix that UDP GRO may coalesce, since GRO compares lengths only.
func TestRunMayMixSessionsAndHandshakes(t *testing.T) {
	r := newRig(t)
	other, _ := r.newPeer("10.0.9.0/24")
	_, theirs := r.newSession(other, true)
	size := wire.InitiationSize // 116 bytes of plaintext, not padded: all messages have the size of an initiation
	mine := in4.UDP(make([]byte, size-wire.DataOverhead-28))
	its := flow.Ends{Src: mustPort("10.0.9.9:1"), Dst: in4.Dst}.UDP(make([]byte, size-wire.DataOverhead-28))
	r.engine.SetMTU(len(mine))
	initiation := append([]byte{1, 0, 0, 0}, make([]byte, size-4)...)
	var run []byte
	for _, msg := range [][]byte{
		r.message(r.remote, mine), initiation, r.message(theirs, its), r.message(r.remote, mine), make([]byte, size),
		r.message(theirs, its),
	} {
		run = append(run, pad(msg, size)...)
	}
	r.receive(run, size)
	if len(r.control.messages) != 1 || !bytes.Equal(r.control.messages[0], initiation) {
		t.Errorf("got %d handshake messages, want 1", len(r.control.messages))
	}
	if got := len(packetsOf(t, r.delivered()...)) + int(r.drops(drop.RXAuth)); got != 4 || r.drops(drop.RXBadType) != 1 {
		t.Errorf("got %d data messages and %d bad ones, want 4 and 1", got, r.drops(drop.RXBadType))
	}
}

func pad(b []byte, n int) []byte { return append(b, make([]byte, max(0, n-len(b)))...)[:n] }

func TestCoveringPrefixCannotSpoofMoreSpecificPeer(t *testing.T) {
	r := newRig(t)
	wide, _ := r.newPeer("10.0.0.0/8")
	_, theirs := r.newSession(wide, false)
	spoofed := r.message(theirs, in4.UDP(nil)) // 10.0.0.2 is r.peer's
	r.receive(spoofed, len(spoofed))
	if r.drops(drop.RXInnerSpoofed) != 1 || len(r.delivered()) != 0 {
		t.Error("a peer with a covering prefix spoofed a more specific peer's address")
	}
	own := r.message(theirs, flow.Ends{Src: mustPort("10.0.0.3:1"), Dst: in4.Dst}.UDP(nil))
	r.receive(own, len(own))
	if len(r.delivered()) != 1 {
		t.Error("the peer's own address was refused")
	}
}

func TestOnlyAuthenticatedMessagesRoam(t *testing.T) {
	elsewhere := underlay.Endpoint{Dst: mustPort("198.51.100.1:999"), Src: there.Src}
	otherSource := underlay.Endpoint{Dst: there.Dst, Src: netip.MustParseAddr("192.0.2.9")}
	for _, c := range []struct {
		name string
		from underlay.Endpoint
		msg  func(*rig) []byte
		want int
	}{
		{"data", elsewhere, func(r *rig) []byte { return r.message(r.remote, in4.UDP(nil)) }, 1},
		{"keepalive", elsewhere, func(r *rig) []byte { return r.message(r.remote, nil) }, 1},
		{"our other address", otherSource, func(r *rig) []byte { return r.message(r.remote, nil) }, 1},
		{"the same endpoint", there, func(r *rig) []byte { return r.message(r.remote, nil) }, 0},
		{"forged", elsewhere, func(r *rig) []byte { return forged(r.message(r.remote, nil)) }, 0},
		{"replayed", elsewhere, func(r *rig) []byte {
			msg := r.message(r.remote, nil)
			r.receive(msg, len(msg))
			return msg
		}, 0},
	} {
		r := newRig(t)
		msg := c.msg(r)
		r.receiveFrom(c.from, msg, len(msg))
		if len(r.owner.roams) != c.want {
			t.Errorf("%s: roamed %d times, want %d", c.name, len(r.owner.roams), c.want)
		}
	}
}

func TestKeepaliveIsCountedAndNotDelivered(t *testing.T) {
	r := newRig(t)
	msg := r.message(r.remote, nil)
	r.receive(msg, len(msg))
	rx, _ := r.peer.Traffic()
	if len(r.delivered()) != 0 || r.allDrops() != 0 || rx != wire.KeepaliveSize {
		t.Errorf("%d bytes received, %d drops", rx, r.allDrops())
	}
	if got, want := r.peer.Packets(), (PeerPackets{Rx: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestRejectedMessagesCountForTheirPeer(t *testing.T) {
	r := newRig(t)
	spoofed := r.message(r.remote, out4.UDP(nil))
	forged := append(bytes.Clone(spoofed[:len(spoofed)-1]), 0xff)
	for _, msg := range [][]byte{spoofed, forged, r.message(r.remote, in4.UDP(nil))} {
		r.receive(msg, len(msg))
	}
	if got, want := r.peer.Packets(), (PeerPackets{Rx: 2, RxDrops: 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	r.owner.refusal = drop.HelloUnwanted
	hello := r.message(r.remote, wire.AppendHello(nil, &wire.Hello{}))
	r.receive(hello, len(hello))
	if got, want := r.peer.Packets(), (PeerPackets{Rx: 3, RxDrops: 3}); got != want || r.drops(drop.HelloUnwanted) != 1 {
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
	ours, theirs := r.newSession(r.peer, false)
	r.peer.Unconfirmed.Store(ours)
	old := r.message(r.remote, in4.UDP(nil))
	r.receive(old, len(old))
	if len(r.owner.confirmed) != 0 {
		t.Fatal("a message of the old session confirmed the new one")
	}
	wrong := forged(r.message(theirs, nil))
	r.receive(wrong, len(wrong))
	if len(r.owner.confirmed) != 0 {
		t.Fatal("a forged message confirmed a session")
	}
	msg := r.message(theirs, nil)
	r.receive(msg, len(msg))
	if len(r.owner.confirmed) != 1 || r.owner.confirmed[0] != ours {
		t.Errorf("got confirmed sessions %v, want length 1", r.owner.confirmed)
	}
}

func TestReceivingRequestsRekeyBeforeSessionExpires(t *testing.T) {
	for _, c := range []struct {
		initiator bool
		age       time.Duration
		want      int
	}{{true, 165*time.Second - 1, 0}, {true, 165 * time.Second, 1}, {false, 179 * time.Second, 0}} {
		r := newRig(t)
		_, theirs := r.newSession(r.peer, c.initiator)
		msg := r.message(theirs, nil)
		r.now += int64(c.age)
		r.receive(msg, len(msg))
		if r.owner.rekeys != c.want {
			t.Errorf("initiator %v, age %v: asked %d times, want %d", c.initiator, c.age, r.owner.rekeys, c.want)
		}
	}
}

func TestHandshakeMessagesReachControlWithSender(t *testing.T) {
	r := newRig(t)
	r.control.reason = drop.HSQueueFull
	for kind, size := range map[byte]int{1: wire.InitiationSize, 2: wire.ResponseSize, 3: wire.CookieReplySize} {
		msg := append([]byte{kind, 0, 0, 0}, make([]byte, size-4)...)
		r.receive(msg, len(msg))
	}
	if len(r.control.messages) != 3 || r.control.from[2] != there || r.drops(drop.HSQueueFull) != 3 {
		t.Errorf("%d messages, %d counted", len(r.control.messages), r.drops(drop.HSQueueFull))
	}
}

func TestPartsOfExchangesReachTheSlowPath(t *testing.T) {
	r := newRig(t)
	ours, theirs := r.newSession(r.peer, false)
	part := wire.AppendKEMPart(nil, wire.KEMKey, make([]byte, wire.KEMKeySize), 1)
	msg := r.message(theirs, part)
	r.receive(msg, len(msg))
	if got := r.owner.parts; len(got) != 1 || got[0].keys != ours || got[0].plain[:len(part)] != string(part) || len(r.owner.hellos) != 0 {
		t.Errorf("got %d parts and %d hellos, want the part with the key pair of its session", len(got), len(r.owner.hellos))
	}
}

func TestRestrictedSessionAcceptsNoData(t *testing.T) {
	r := newRig(t)
	ours, theirs := r.newSession(r.peer, false)
	ours.Restrict()
	for _, plain := range [][]byte{in4.UDP(nil), nil, wire.AppendHello(nil, &wire.Hello{})} {
		msg := r.message(theirs, plain)
		r.receive(msg, len(msg))
	}
	if n := r.drops(drop.RXNotPostQuantum); n != 1 || len(r.delivered()) != 0 || len(r.owner.hellos) != 1 {
		t.Errorf("got %d drops and %d hellos, want 1 and 1", n, len(r.owner.hellos))
	}
}
