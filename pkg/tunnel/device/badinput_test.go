// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
)

// TestEachDamagedDatagramIsCounted sends every truncation and every flipped bit of each kind of message. Each is dropped
// for one reason, and none disturbs the session.
func TestEachDamagedDatagramIsCounted(t *testing.T) {
	var seen messages
	lan := devicetest.NewLAN(seen.filter)
	a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
	devicetest.Connect(a, b)
	talk(t, a, b)
	a.Await("the path MTU is known", pathMTUKnown(a, b))
	b.Await("the path MTU is known", pathMTUKnown(b, a))
	talk(t, a, b) // the last messages are no probes
	s := newStranger(t, lan, 66)
	var damaged [][]byte
	for _, msg := range [][]byte{
		seen.latest(wire.TypeInitiation), seen.latest(wire.TypeResponse), seen.latest(wire.TypeData),
		append([]byte{3, 0, 0, 0}, make([]byte, wire.CookieReplySize-4)...),
	} {
		damaged = append(damaged, damage(msg)...)
	}
	before := total(b.AllDrops())
	for i, msg := range damaged {
		s.send(b, msg)
		want := before + uint64(i+1)
		if i%100 == 0 || i == len(damaged)-1 {
			b.Await("all damaged messages are counted", func() bool { return total(b.AllDrops()) == want })
		}
	}
	if got := b.PeerStatus(a).Endpoint.AddrPort; got != a.Outside(false) {
		t.Errorf("roamed to %v", got)
	}
	talk(t, a, b)
}

// damage returns all truncations of a message, some extensions, and the message with each bit flipped, but for those
// that would leave it a valid one.
func damage(msg []byte) (all [][]byte) {
	for n := range len(msg) {
		all = append(all, msg[:n])
	}
	for _, n := range []int{1, 16, 1000, 65000} {
		all = append(all, append(bytes.Clone(msg), make([]byte, n)...))
	}
	end := len(msg)
	if msg[0] < 3 {
		end -= wire.MACLen // mac2 does not matter but under load
	}
	for bit := range 8 * end {
		m := bytes.Clone(msg)
		m[bit/8] ^= 1 << (bit % 8)
		all = append(all, m)
	}
	return all
}

func total(drops map[string]uint64) (n uint64) {
	for _, d := range drops {
		n += d
	}
	return n
}

func TestHandshakeFloodIsBounded(t *testing.T) { synctest.Test(t, handshakeFloodIsBounded) }

func handshakeFloodIsBounded(t *testing.T) {
	lan := devicetest.NewLAN(nil)
	h, s := idleHost(t, lan, 1), newStranger(t, lan, 66)
	msg := s.initiation(h, at(1))
	const extra, room = 500, device.HandshakeQueueLen / 2 // the other half is for other senders
	refused := 0
	for range room + extra {
		switch h.Handshake(msg, s.port.Endpoint(false)) {
		case drop.None:
		case drop.HSQueueFull:
			refused++
		default:
			t.Fatal("neither queued nor refused")
		}
	}
	if refused != extra {
		t.Errorf("%d refused, want %d", refused, extra)
	}
	if n := h.Step(); n != room {
		t.Errorf("%d messages were held, want %d", n, room)
	}
}

// load puts a host under load: more messages wait than it likes. They are worked off, and it stays loaded for a second.
func (s *stranger) load(h *devicetest.Host) {
	msg := s.initiation(h, at(0))
	for range device.UnderLoadLen + 1 {
		h.Handshake(msg, s.port.Endpoint(false))
	}
	h.StepHandshakes()
}

// TestUnderLoadInitiatorNeedsCookie: mac1 is not enough, a cookie for the sender's address and port is; and even then
// there is a rate, but one for each source.
func TestUnderLoadInitiatorNeedsCookie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		h, s, flooder := idleHost(t, lan, 1), newStranger(t, lan, 66), newStranger(t, lan, 77)
		h.Apply(config.Device{Peers: []config.Peer{s.asPeer()}})
		flooder.load(h)
		mine := s.port.Endpoint(false)

		msg, jar := s.withJar(h, at(1))
		wantReasons(t, h, mine, msg, drop.HSNoCookie)
		reply := s.receive()
		if r := jar.ConsumeReply(reply, 0); r != drop.None {
			t.Fatalf("answered with %x: %v", reply, r)
		}
		msg = s.initiation(h, at(2))
		if err := jar.AddMACs(msg, 0); err != nil {
			t.Fatal(err)
		}
		otherPort := underlay.Endpoint{Dst: netip.AddrPortFrom(mine.Dst.Addr(), 1)}
		wantReasons(t, h, otherPort, msg, drop.HSNoCookie)
		wantReasons(t, h, mine, msg, drop.None)
		wantReasons(t, h, mine, msg, drop.HSReplay) // the second of five at once
		for range 3 {
			wantReasons(t, h, mine, msg, drop.HSReplay)
		}
		wantReasons(t, h, mine, msg, drop.HSRateLimited)

		other := newStranger(t, lan, 67)
		cookied := other.withCookie(h)
		wantReasons(t, h, other.port.Endpoint(false), cookied, drop.HSUnknownPeer) // not limited

		time.Sleep(2 * time.Second)
		wantReasons(t, h, mine, s.initiation(h, at(3)), drop.None) // no load any more
	})
}

// markedMessages counts the messages that leave with the DSCP of handshakes.
type markedMessages struct {
	underlay.Port
	count *atomic.Int32
}

func (m markedMessages) SendTo(to *underlay.Endpoint, datagram []byte) error {
	m.count.Add(1)
	return m.Port.SendTo(to, datagram)
}

// TestCookieRepliesAreNotMarked: anybody can ask for cookies, and must not fill the priority queues of a network.
func TestCookieRepliesAreNotMarked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var marked atomic.Int32
		lan := devicetest.NewLAN(nil)
		h := lan.Host(t, 1, devicetest.Options{Stop: true, WrapPort: func(p underlay.Port) underlay.Port { return markedMessages{p, &marked} }})
		h.Follow(tun.Event{Up: true, MTU: 1420})
		t.Cleanup(h.Shut)
		s, flooder := newStranger(t, lan, 66), newStranger(t, lan, 77)
		h.Apply(config.Device{Peers: []config.Peer{s.asPeer()}})
		flooder.load(h)
		before := marked.Load()
		wantReasons(t, h, s.port.Endpoint(false), s.initiation(h, at(1)), drop.HSNoCookie)
		if reply := s.receive(); wire.Type(reply[0]) != wire.TypeCookieReply || marked.Load() != before {
			t.Errorf("got message type %d, marked %v, want a cookie reply that is not", reply[0], marked.Load() != before)
		}
	})
}

// withJar returns an initiation and the jar that has seen it.
func (s *stranger) withJar(h *devicetest.Host, when noise.Timestamp) ([]byte, *noise.CookieJar) {
	remote, err := noise.NewRemote(s.id, h.Public())
	if err != nil {
		s.t.Fatal(err)
	}
	msg, jar := s.initiation(h, when), noise.NewCookieJar(remote)
	if err := jar.AddMACs(msg, 0); err != nil {
		s.t.Fatal(err)
	}
	return msg, jar
}

// withCookie returns an initiation with the cookie that a loaded host hands out.
func (s *stranger) withCookie(h *devicetest.Host) []byte {
	msg, jar := s.withJar(h, at(1))
	h.Handshake(msg, s.port.Endpoint(false))
	h.StepHandshakes()
	if r := jar.ConsumeReply(s.receive(), 0); r != drop.None {
		s.t.Fatal(r)
	}
	if err := jar.AddMACs(msg, 0); err != nil {
		s.t.Fatal(err)
	}
	return msg
}

func wantReasons(t *testing.T, h *devicetest.Host, from underlay.Endpoint, msg []byte, want drop.Reason) {
	t.Helper()
	if r := h.Handshake(msg, from); r != drop.None {
		if r != want {
			t.Errorf("refused by the lane: %v, want %v", r, want)
		}
		return
	}
	if got := h.StepHandshakes(); len(got) != 1 || got[0] != want {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestDeviceWithoutPrivateKeyAnswersNothing(t *testing.T) {
	lan := devicetest.NewLAN(nil)
	h, s := idleHost(t, lan, 1), newStranger(t, lan, 66)
	msg := s.initiation(h, at(1))
	h.Apply(config.Device{PrivateKey: &noise.PrivateKey{}})
	wantReasons(t, h, s.port.Endpoint(false), msg, drop.HSInvalid)
}

// FuzzHandshake gives the slow path anything that passes for a handshake message. With repaired set, its mac1 is right,
// so that it reaches the Noise code; it can never be right beyond that.
func FuzzHandshake(f *testing.F) {
	lan := devicetest.NewLAN(nil)
	h, s := idleHost(f, lan, 1), newStranger(f, lan, 66)
	h.Apply(config.Device{Peers: []config.Peer{s.asPeer()}})
	for kind, size := range map[byte]int{1: wire.InitiationSize, 2: wire.ResponseSize, 3: wire.CookieReplySize, 4: 32, 5: 0} {
		f.Add(append([]byte{kind, 0, 0, 0}, make([]byte, size)...)[:max(size, 1)], false)
	}
	f.Add(s.initiation(h, at(1)), true)
	remote, err := noise.NewRemote(s.id, h.Public())
	if err != nil {
		f.Fatal(err)
	}
	jar := noise.NewCookieJar(remote)
	f.Fuzz(func(t *testing.T, msg []byte, repaired bool) {
		if repaired {
			_ = jar.AddMACs(msg, 0)
		}
		if r := h.Handshake(msg, s.port.Endpoint(false)); r != drop.None {
			return
		}
		if got := h.StepHandshakes(); len(got) != 1 {
			t.Fatalf("one message became %v", got)
		}
		if h.Indices() > 2 { // the session, and one that waits for confirmation
			t.Errorf("%d receiver indices are held", h.Indices())
		}
	})
}

// TestEachOfManyPeersCanConnect configures some thousand peers, each with an address of its own, and has all of them
// complete a handshake.
func TestEachOfManyPeersCanConnect(t *testing.T) {
	const underWay = 32
	peers := 2000
	if raceEnabled {
		peers = 400
	}
	lan := devicetest.NewLAN(nil)
	h, s := lan.Host(t, 1, devicetest.Options{}), newStranger(t, lan, 66)
	many := make([]*stranger, peers)
	var all []config.Peer
	for i := range many {
		many[i] = &stranger{t: t, port: s.port, key: newKey(t)}
		many[i].id, _ = noise.NewIdentity(many[i].key)
		ip := netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)})
		all = append(all, config.Peer{
			PublicKey:  many[i].key.Public(),
			AllowedIPs: []config.AllowedIP{{Prefix: netip.PrefixFrom(ip, 32)}},
		})
	}
	h.Apply(config.Device{Peers: all})
	room := make(chan struct{}, underWay)
	go func() {
		for i, m := range many {
			room <- struct{}{}
			s.send(h, m.initiationTo(h.Public(), uint32(i), at(1)))
		}
	}()
	connected := map[uint32]bool{}
	for len(connected) < peers {
		msg, reason := wire.AsResponse(s.receive())
		if reason != drop.None {
			t.Fatalf("answered with something else: %v", reason)
		}
		connected[msg.Receiver()] = true
		<-room
	}
	if n := h.Indices(); n != peers {
		t.Errorf("%d receiver indices, want %d", n, peers)
	}
	h.Apply(config.Device{ReplacePeers: true})
	if n := h.Indices(); n != 0 {
		t.Errorf("%d receiver indices are left", n)
	}
}

// TestRepliesToUnknownIndicesAreCounted sends responses, with a valid mac1, and cookie replies for unknown indices.
func TestRepliesToUnknownIndicesAreCounted(t *testing.T) {
	lan := devicetest.NewLAN(nil)
	h, s := idleHost(t, lan, 1), newStranger(t, lan, 66)
	remote, err := noise.NewRemote(s.id, h.Public())
	if err != nil {
		t.Fatal(err)
	}
	response := append([]byte{2, 0, 0, 0}, make([]byte, wire.ResponseSize-4)...)
	binary.LittleEndian.PutUint32(response[8:], 4711)
	if err := noise.NewCookieJar(remote).AddMACs(response, 0); err != nil {
		t.Fatal(err)
	}
	reply := append([]byte{3, 0, 0, 0}, make([]byte, wire.CookieReplySize-4)...)
	for _, msg := range [][]byte{response, reply} {
		wantReasons(t, h, s.port.Endpoint(false), msg, drop.RXUnknownIndex)
	}
}
