// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
)

// forged returns an endpoint in network n of 4096 whose senders share no prefix.
func forged(n int) underlay.Endpoint {
	return underlay.Endpoint{Dst: netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, byte(16 + n>>8&15), byte(n), byte(1 + n>>12)}), 7)}
}

// overflow floods a host with initiations that have a valid mac1, from all prefixes, until no more fit. It takes some virtual time, in which
// the host permits cookies.
func (s *stranger) overflow(h *devicetest.Host) {
	msg, full := s.initiation(h, at(0)), 0
	for n := 0; full < device.HandshakeQueueLen; n++ {
		switch r := h.Handshake(msg, forged(n)); r {
		case drop.None:
		case drop.HSRateLimited:
			time.Sleep(time.Millisecond)
		case drop.HSQueueFull:
			full++
		default:
			s.t.Fatalf("a message of the flood: %v", r)
		}
	}
	time.Sleep(10 * time.Millisecond) // for the cookie of one more sender
}

// peerAt configures the stranger as a peer at its endpoint.
func (s *stranger) peerAt() config.Peer {
	c := s.asPeer()
	c.Endpoint = &config.Endpoint{AddrPort: s.port.Endpoint(false).Dst}
	return c
}

// floodCase returns a host whose queue a flooder has filled, and a peer whose endpoint the host knows.
func floodCase(t *testing.T) (h *devicetest.Host, peer, flooder *stranger) {
	lan := devicetest.NewLAN(nil)
	h, peer, flooder = idleHost(t, lan, 1), newStranger(t, lan, 66), newStranger(t, lan, 77)
	h.Apply(config.Device{Peers: []config.Peer{peer.peerAt()}})
	flooder.overflow(h)
	return h, peer, flooder
}

// TestPeerNeedsTwoTriesUnderFlood fills the queue before each try.
func TestPeerNeedsTwoTriesUnderFlood(t *testing.T) { synctest.Test(t, peerNeedsTwoTriesUnderFlood) }

func peerNeedsTwoTriesUnderFlood(t *testing.T) {
	h, peer, flooder := floodCase(t)
	mine := peer.port.Endpoint(false)
	msg, jar := peer.withJar(h, at(1))
	if r := h.Handshake(msg, mine); r != drop.None {
		t.Fatalf("the first try: %v", r)
	}
	if got := h.StepHandshakes(); got[0] != drop.HSNoCookie {
		t.Fatalf("the peer's message was not the first: %v", got[0])
	}
	if r := jar.ConsumeReply(peer.receive(), 0); r != drop.None {
		t.Fatalf("the cookie: %v", r)
	}
	flooder.overflow(h)
	msg = peer.initiation(h, at(2))
	if err := jar.AddMACs(msg, 0); err != nil {
		t.Fatal(err)
	}
	if r := h.Handshake(msg, mine); r != drop.None {
		t.Fatalf("the second try: %v", r)
	}
	if got := h.StepHandshakes(); got[0] != drop.None {
		t.Fatalf("the message with a cookie was refused: %v", got[0])
	}
	if reply := peer.receive(); wire.Type(reply[0]) != wire.TypeResponse {
		t.Errorf("answered with type %d", reply[0])
	}
}

// TestOwnHandshakeNeedsOneTryUnderFlood: only the peer knows the receiver index of the response.
func TestOwnHandshakeNeedsOneTryUnderFlood(t *testing.T) {
	synctest.Test(t, ownHandshakeNeedsOneTryUnderFlood)
}

func ownHandshakeNeedsOneTryUnderFlood(t *testing.T) {
	h, peer, flooder := floodCase(t)
	h.StepHandshakes()
	h.PeerOf(peer.key.Public()).Rekey()
	h.Step()
	response := peer.respond(h, peer.receive())
	flooder.overflow(h)
	if r := h.Handshake(response, forged(1)); r != drop.None { // it may come from another address
		t.Fatalf("the response: %v", r)
	}
	if got := h.StepHandshakes(); got[0] != drop.None {
		t.Errorf("the response was refused: %v", got[0])
	}
}

// respond returns the response to a host's initiation.
func (s *stranger) respond(h *devicetest.Host, initiation []byte) []byte {
	r := noise.NewResponder(s.id)
	remote, err := noise.NewRemote(s.id, h.Public())
	if err != nil {
		s.t.Fatal(err)
	}
	_, consumed := r.ConsumeInitiation(initiation)
	_, authentic := r.Authenticate(remote)
	if consumed != drop.None || authentic != drop.None {
		s.t.Fatalf("the initiation: %v, %v", consumed, authentic)
	}
	var msg wire.Response
	_, err = r.CreateResponse(&msg, 77, new(noise.PresharedKey), rand.Reader)
	if err := errors.Join(err, noise.NewCookieJar(remote).AddMACs(msg[:], 0)); err != nil {
		s.t.Fatal(err)
	}
	return msg[:]
}

func TestForgedEndpointUsesUpOneAddress(t *testing.T) {
	synctest.Test(t, forgedEndpointUsesUpOneAddress)
}

func forgedEndpointUsesUpOneAddress(t *testing.T) {
	lan := devicetest.NewLAN(nil)
	h, flooder := idleHost(t, lan, 1), newStranger(t, lan, 77)
	first, second := newStranger(t, lan, 66), newStranger(t, lan, 67)
	other := second.peerAt()
	other.AllowedIPs = nil
	h.Apply(config.Device{Peers: []config.Peer{first.peerAt(), other}})
	flooder.overflow(h)
	junk := flooder.initiation(h, at(0))
	reserved := 0
	for range 1000 {
		if h.Handshake(junk, first.port.Endpoint(false)) == drop.None {
			reserved++
		}
	}
	if reserved != 5 {
		t.Errorf("%d messages of a forged endpoint had the reserved share, want 5", reserved)
	}
	if r := h.Handshake(second.initiation(h, at(1)), second.port.Endpoint(false)); r != drop.None {
		t.Errorf("a peer at another address: %v", r)
	}
}

// TestFloodOfOnePrefixLeavesRoom: the sender is no peer, or has another address than before.
func TestFloodOfOnePrefixLeavesRoom(t *testing.T) { synctest.Test(t, floodOfOnePrefixLeavesRoom) }

func floodOfOnePrefixLeavesRoom(t *testing.T) {
	lan := devicetest.NewLAN(nil)
	h, s := idleHost(t, lan, 1), newStranger(t, lan, 66)
	msg := s.initiation(h, at(1))
	for port := uint16(0); h.Handshake(msg, onePrefix(port)) != drop.HSQueueFull; port++ {
		time.Sleep(20 * time.Millisecond) // one cookie
	}
	if n := h.QueuedHandshakes(); n != device.HandshakeQueueLen/2 {
		t.Errorf("%d messages of a prefix wait, want %d", n, device.HandshakeQueueLen/2)
	}
	if !s.entersElsewhere(h) {
		t.Error("senders elsewhere find no room")
	}
}

// onePrefix returns an endpoint of a prefix, which forged does not return.
func onePrefix(port uint16) underlay.Endpoint {
	return underlay.Endpoint{Dst: netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(port)}), port)}
}

// entersElsewhere reports whether one of four prefixes finds room: a random seed may put some of them into a group with others.
func (s *stranger) entersElsewhere(h *devicetest.Host) bool {
	msg := s.initiation(h, at(1))
	for n := range 4 {
		if h.Handshake(msg, forged(n)) == drop.None {
			return true
		}
	}
	return false
}

// TestCookiesForOnePrefixAreLimited floods a loaded host from one prefix. Others, and a peer of that prefix, are not concerned.
func TestCookiesForOnePrefixAreLimited(t *testing.T) { synctest.Test(t, cookiesForOnePrefixAreLimited) }

func cookiesForOnePrefixAreLimited(t *testing.T) {
	lan := devicetest.NewLAN(nil)
	h, peer, flooder := idleHost(t, lan, 1), newStranger(t, lan, 66), newStranger(t, lan, 77)
	known := peer.peerAt()
	known.Endpoint = &config.Endpoint{AddrPort: onePrefix(1).Dst}
	h.Apply(config.Device{Peers: []config.Peer{known}})
	flooder.load(h)
	msg, answered := flooder.initiation(h, at(1)), 0
	for port := range uint16(2 * device.CookieGroupBurst) {
		switch r := h.Handshake(msg, onePrefix(2+port)); r {
		case drop.None:
			if answered++; answered%1000 == 0 {
				h.StepHandshakes() // the queue has room
			}
		case drop.HSRateLimited:
		default:
			t.Fatal(r)
		}
	}
	// A random seed may put the address that loaded the host, which got a cookie, into the same group.
	if answered != device.CookieGroupBurst && answered != device.CookieGroupBurst-1 {
		t.Errorf("%d messages of a prefix may be answered, want %d", answered, device.CookieGroupBurst)
	}
	if !flooder.entersElsewhere(h) {
		t.Error("senders elsewhere get no cookie")
	}
	if r := h.Handshake(peer.initiation(h, at(2)), onePrefix(1)); r != drop.None {
		t.Errorf("a peer in the prefix of the flood: %v", r)
	}
}

// TestRefusedMessagesUseUpNoCookies floods a loaded host from one prefix, beyond its part of the queue.
func TestRefusedMessagesUseUpNoCookies(t *testing.T) {
	synctest.Test(t, refusedMessagesUseUpNoCookies)
}

func refusedMessagesUseUpNoCookies(t *testing.T) {
	lan := devicetest.NewLAN(nil)
	h, flooder := idleHost(t, lan, 1), newStranger(t, lan, 77)
	flooder.load(h)
	msg, reasons := flooder.initiation(h, at(1)), map[drop.Reason]int{}
	for port := range uint16(2 * device.CookieGroupBurst) {
		reasons[h.Handshake(msg, onePrefix(port))]++
	}
	if reasons[drop.HSQueueFull] < device.CookieGroupBurst || reasons[drop.HSRateLimited] > 0 {
		t.Errorf("messages by reason: %v, want that the queue refuses more than half, and the limit none", reasons)
	}
	h.StepHandshakes()
	if r := h.Handshake(msg, onePrefix(0)); r != drop.None {
		t.Errorf("a message when the queue is empty: %v", r)
	}
}

// TestCookiesForAllPrefixesAreLimited floods a loaded host from all prefixes for a second.
func TestCookiesForAllPrefixesAreLimited(t *testing.T) {
	synctest.Test(t, cookiesForAllPrefixesAreLimited)
}

func cookiesForAllPrefixesAreLimited(t *testing.T) {
	lan := devicetest.NewLAN(nil)
	h, flooder := idleHost(t, lan, 1), newStranger(t, lan, 77)
	flooder.load(h)
	msg, answered := flooder.initiation(h, at(1)), 0
	const steps, perStep = 1000, 50
	for i := range steps {
		for n := range perStep {
			h.Handshake(msg, forged(i*perStep+n))
		}
		for _, r := range h.StepHandshakes() {
			if r == drop.HSNoCookie {
				answered++
			}
		}
		time.Sleep(time.Second / steps)
	}
	if limit := device.CookieBurst + device.CookieRate; answered < limit*9/10 || answered > limit {
		t.Errorf("%d of %d messages in a second were answered, want %d", answered, steps*perStep, limit)
	}
}

// TestProvenSenderIsLimitedBeforeQueue: a sender with a cookie cannot fill the reserved queue.
func TestProvenSenderIsLimitedBeforeQueue(t *testing.T) {
	synctest.Test(t, provenSenderIsLimitedBeforeQueue)
}

func provenSenderIsLimitedBeforeQueue(t *testing.T) {
	h, peer, flooder := floodCase(t)
	h.StepHandshakes()
	cookied := flooder.withCookie(h)
	flooder.overflow(h)
	before, accepted := h.QueuedHandshakes(), 0
	for range 1000 {
		if h.Handshake(cookied, flooder.port.Endpoint(false)) == drop.None {
			accepted++
		}
	}
	if n := h.QueuedHandshakes() - before; accepted != 5 || n != 5 {
		t.Errorf("%d messages accepted, %d queued, want 5", accepted, n)
	}
	if r := h.Handshake(peer.initiation(h, at(1)), peer.port.Endpoint(false)); r != drop.None {
		t.Errorf("a peer: %v", r)
	}
}

// TestUnknownSendersNeedThreeTriesUnderForgedFlood floods a loaded host from invented addresses. Each of ten unknown senders gets its cookie
// with the second try at the latest, so that the third succeeds.
func TestUnknownSendersNeedThreeTriesUnderForgedFlood(t *testing.T) {
	synctest.Test(t, unknownSendersNeedThreeTriesUnderForgedFlood)
}

func unknownSendersNeedThreeTriesUnderForgedFlood(t *testing.T) {
	lan := devicetest.NewLAN(nil)
	h, s := idleHost(t, lan, 1), newStranger(t, lan, 77)
	msg, random := s.initiation(h, at(1)), mathrand.New(mathrand.NewPCG(1, 2))
	flood := func(duration time.Duration) {
		for ; duration > 0; duration -= 10 * time.Millisecond {
			time.Sleep(10 * time.Millisecond)
			for range 200 {
				n := random.Uint32()
				h.Handshake(msg, underlay.Endpoint{Dst: netip.AddrPortFrom(netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), 7)})
			}
			if h.QueuedHandshakes() > device.HandshakeQueueLen/2 { // so many wait that the host stays under load
				h.StepHandshakes()
			}
		}
	}
	try := func() (answered int) {
		for n := range 10 {
			if h.Handshake(msg, forged(n)) == drop.None {
				answered++
			}
		}
		return answered
	}
	s.load(h)
	flood(1500 * time.Millisecond)
	if n := try(); n > 5 {
		t.Errorf("the first try of %d senders is answered, although the flood takes the cookies", n)
	}
	flood(5200 * time.Millisecond)
	if n := try(); n < 10 {
		t.Errorf("the second try of %d senders is answered, want 10", n)
	}
}

// TestLaneDropsAnswersToNobody: a response or cookie reply without a receiver index of ours wakes no worker.
func TestLaneDropsAnswersToNobody(t *testing.T) {
	h := idleHost(t, devicetest.NewLAN(nil), 1)
	for kind, size := range map[wire.Type]int{wire.TypeResponse: wire.ResponseSize, wire.TypeCookieReply: wire.CookieReplySize} {
		msg := make([]byte, size)
		msg[0] = byte(kind)
		if r := h.Handshake(msg, forged(1)); r != drop.RXUnknownIndex || h.QueuedHandshakes() != 0 {
			t.Errorf("type %d: got %v, %d messages wait, want %v, 0", kind, r, h.QueuedHandshakes(), drop.RXUnknownIndex)
		}
	}
}

// TestLaneDropsInvalidMAC1UnderLoad: such messages take no room in the queue.
func TestLaneDropsInvalidMAC1UnderLoad(t *testing.T) { synctest.Test(t, laneDropsInvalidMAC1UnderLoad) }

func laneDropsInvalidMAC1UnderLoad(t *testing.T) {
	h, peer, _ := floodCase(t)
	before := h.QueuedHandshakes()
	msg := peer.initiation(h, at(1))
	msg[100] ^= 1
	if r := h.Handshake(msg, peer.port.Endpoint(false)); r != drop.HSBadMAC1 || h.QueuedHandshakes() != before {
		t.Errorf("%v, %d messages wait, want %d", r, h.QueuedHandshakes(), before)
	}
}

// TestKnownEndpointsFollowPeers: a peer that moves or goes leaves none behind.
func TestKnownEndpointsFollowPeers(t *testing.T) {
	lan := devicetest.NewLAN(nil)
	h, s := idleHost(t, lan, 1), newStranger(t, lan, 66)
	h.Apply(config.Device{Peers: []config.Peer{s.peerAt()}})
	moved := s.peerAt()
	moved.Endpoint = &config.Endpoint{AddrPort: forged(1).Dst}
	for _, step := range []struct {
		name string
		do   func()
		want int
	}{
		{"configured", func() {}, 1},
		{"moved", func() { h.Apply(config.Device{Peers: []config.Peer{moved}}) }, 1},
		{"another port", func() { port := uint16(4242); h.Apply(config.Device{ListenPort: &port}) }, 1},
		{"removed", func() { h.Apply(config.Device{ReplacePeers: true}) }, 0},
		{"added again", func() { h.Apply(config.Device{Peers: []config.Peer{s.peerAt()}}) }, 1},
		{"another key", func() { key := newKey(t); h.Apply(config.Device{PrivateKey: &key}) }, 1},
	} {
		if step.do(); h.KnownEndpoints() != step.want {
			t.Errorf("%s: %d known endpoints, want %d", step.name, h.KnownEndpoints(), step.want)
		}
	}
}
