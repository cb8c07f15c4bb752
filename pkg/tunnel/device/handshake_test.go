// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"bytes"
	"crypto/rand"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

func newPSK(t *testing.T) *noise.PresharedKey {
	t.Helper()
	psk, err := noise.NewPresharedKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &psk
}

func TestTwoDevicesCarryBothFamiliesOverBothFamilies(t *testing.T) {
	for name, outer6 := range map[string]bool{"over IPv4": false, "over IPv6": true} {
		t.Run(name, func(t *testing.T) {
			lan := devicetest.NewLAN(nil)
			a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
			forB, forA := b.AsPeer(outer6), a.AsPeer(outer6)
			forA.PresharedKey = newPSK(t)
			forB.PresharedKey = forA.PresharedKey
			a.Apply(config.Device{Peers: []config.Peer{forB}})
			b.Apply(config.Device{Peers: []config.Peer{forA}})
			for _, inner6 := range []bool{false, true} {
				for _, size := range []int{48, 49, 64, 1000, 1420} {
					carries(t, a, b, inner6, size)
					carries(t, b, a, inner6, size)
				}
			}
			if d := b.PeerStatus(a).Endpoint.AddrPort; d != a.Outside(outer6) {
				t.Errorf("endpoint %v, want %v", d, a.Outside(outer6))
			}
			b.Await("both sides have the time of their last handshake", func() bool {
				return !b.PeerStatus(a).LastHandshake.IsZero() && !a.PeerStatus(b).LastHandshake.IsZero()
			})
		})
	}
}

// setPSK sets the preshared key of h with another host.
func setPSK(h, other *devicetest.Host, psk *noise.PresharedKey) {
	h.Apply(config.Device{Peers: []config.Peer{{PublicKey: other.Public(), UpdateOnly: true, PresharedKey: psk}}})
}

// TestPresharedKeyChangeReachesTheNextHandshake: live, and without tearing down the session there is.
func TestPresharedKeyChangeReachesTheNextHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		talk(t, a, b)
		psk := newPSK(t)
		setPSK(a, b, psk)
		talk(t, a, b) // by the old session
		first := a.PeerStatus(b).LastHandshake

		time.Sleep(125 * time.Second)
		carries(t, a, b, false, 100) // still the old session; asks for a new one, which b refuses
		time.Sleep(10 * time.Second)
		if !a.PeerStatus(b).LastHandshake.Equal(first) {
			t.Fatal("a handshake with different preshared keys completed")
		}
		setPSK(b, a, psk)
		time.Sleep(10 * time.Second)
		if a.PeerStatus(b).LastHandshake.Equal(first) {
			t.Fatal("no handshake completed after the preshared keys agreed")
		}
		talk(t, a, b)
		if n := a.AllDrops()[drop.TXStagedExpired.String()]; n != 0 {
			t.Errorf("%d packets were lost", n)
		}
	})
}

// TestSimultaneousHandshakesLoseNoPackets has both sides initiate at the same moment.
func TestSimultaneousHandshakesLoseNoPackets(t *testing.T) {
	for range 20 {
		a, b := devicetest.Pair(t, devicetest.Options{})
		var elements [2][][]byte
		for i := range 20 {
			elements[0] = append(elements[0], flow.WithVnetHeader(a.To(b, uint16(i), false).UDP(nil)))
			elements[1] = append(elements[1], flow.WithVnetHeader(b.To(a, uint16(i), true).UDP(nil)))
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.Send(elements[0]...)
		}()
		b.Send(elements[1]...)
		<-done
		wantPorts(t, b, 20)
		wantPorts(t, a, 20)
		talk(t, a, b)
		a.Close()
		b.Close()
	}
}

// wantPorts wants n packets in order, identified by their source ports.
func wantPorts(t *testing.T, h *devicetest.Host, n int) {
	t.Helper()
	for port := 0; port < n; {
		for _, p := range h.Next() {
			l4 := 20
			if p[0]>>4 == 6 {
				l4 = 40
			}
			if got := int(p[l4])<<8 | int(p[l4+1]); got != port {
				t.Fatalf("packet %d came, want %d", got, port)
			}
			port++
		}
	}
}

func TestLateResponsesAreAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen messages
		lan := devicetest.NewLAN(seen.filter)
		a := lan.Host(t, 1, devicetest.Options{})
		b := lan.Host(t, 2, devicetest.Options{WrapPort: func(p underlay.Port) underlay.Port { return lateResponses{p} }})
		devicetest.Connect(a, b)
		talk(t, a, b)
		if n := seen.sent(1, wire.TypeInitiation); n != 1 {
			t.Errorf("%d initiations, want 1: the late response was not accepted", n)
		}
	})
}

// lateResponses is a port from which responses to handshakes take four seconds.
type lateResponses struct{ underlay.Port }

// SendTo implements underlay.Port.
func (l lateResponses) SendTo(to *underlay.Endpoint, datagram []byte) error {
	if kind, _ := wire.Classify(datagram); kind != wire.TypeResponse {
		return l.Port.SendTo(to, datagram)
	}
	late := bytes.Clone(datagram)
	time.AfterFunc(4*time.Second, func() { _ = l.Port.SendTo(to, late) })
	return nil
}

// unheard counts data messages that are delivered. It drops others, which early counts, until heard is set.
type unheard struct {
	messages
	early messages
	heard atomic.Bool
}

func (u *unheard) filter(from, to netip.AddrPort, datagram []byte) underlaytest.Verdict {
	if kind, _ := wire.Classify(datagram); kind == wire.TypeData && !u.heard.Load() {
		_ = u.early.filter(from, to, datagram)
		return underlaytest.Drop
	}
	return u.messages.filter(from, to, datagram)
}

// unconfirmed returns two hosts with a session that a, which has initiated, may use, and has not used. Nobody works at b but its lanes.
func unconfirmed(t *testing.T) (seen *unheard, a, b *devicetest.Host) {
	t.Helper()
	seen = &unheard{}
	lan := devicetest.NewLAN(seen.filter)
	a, b = lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{Stop: true})
	devicetest.Connect(a, b)
	b.Follow(tun.Event{Up: true, MTU: 1420})
	t.Cleanup(b.Shut)
	a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
	b.Await("the initiation is answered, and the answer has arrived", func() bool {
		b.StepHandshakes()
		current, _ := a.PeerOf(b.Public()).Sessions()
		return current != nil
	})
	return seen, a, b
}

// TestResponderAnswersOnConfirmedSession: a peer that has begun anew has forgotten the session before.
func TestResponderAnswersOnConfirmedSession(t *testing.T) {
	seen, a, b := unconfirmed(t)
	peer := b.PeerOf(a.Public())
	_, fresh := peer.Sessions()
	seen.heard.Store(true)
	a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
	b.Next()
	if current, _ := peer.Sessions(); current != fresh || fresh == nil {
		t.Errorf("the answer goes with %v, want %v", current, fresh)
	}
}

// TestResponderSendsNothingUntilSessionIsUsed: only a message in the session shows that the initiator has the keys. Until then no data, hello,
// keepalive or probe leaves.
func TestResponderSendsNothingUntilSessionIsUsed(t *testing.T) {
	seen, a, b := unconfirmed(t)
	b.PeerOf(a.Public()).Stage(flow.WithVnetHeader(b.To(a, 0, false).UDP(nil)), 1)
	b.Step()
	if n := seen.early.sent(2, wire.TypeData); n != 0 {
		t.Errorf("the responder sent %d messages in a session that the initiator has not used", n)
	}
	seen.heard.Store(true)
	a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
	b.Next()
	b.Step()
	a.Next()
}

// TestLanesDeferWorkToWorkers: logging, timers, and hellos, for which up to 64 ports are opened.
func TestLanesDeferWorkToWorkers(t *testing.T) {
	seen, a, b := unconfirmed(t)
	seen.heard.Store(true)
	a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
	b.Next() // so the session has been used
	if n := seen.sent(2, wire.TypeData); n != 0 || !b.PeerStatus(a).LastHandshake.IsZero() {
		t.Errorf("a lane sent %d hellos, want 0; last handshake %v, want none", n, b.PeerStatus(a).LastHandshake)
	}
	b.Step()
	if n := seen.sent(2, wire.TypeData); n == 0 || b.PeerStatus(a).LastHandshake.IsZero() {
		t.Errorf("a worker sent %d hellos, want some; last handshake %v, want one", n, b.PeerStatus(a).LastHandshake)
	}
}

// TestLanesDeferStagedPacketsToWorkers: the lane that finds a session confirmed would have to send it all.
func TestLanesDeferStagedPacketsToWorkers(t *testing.T) {
	seen, a, b := unconfirmed(t)
	peer := b.PeerOf(a.Public())
	peer.Stage(flow.WithVnetHeader(b.To(a, 0, false).UDP(nil)), 1)
	seen.heard.Store(true)
	a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
	b.Next() // so the session has been used
	if current, _ := peer.Sessions(); current != nil || b.StagedBytes() == 0 || seen.sent(2, wire.TypeData) != 0 {
		t.Errorf("a lane has sent %d messages, and left %d bytes", seen.sent(2, wire.TypeData), b.StagedBytes())
	}
	peer.Stage(flow.WithVnetHeader(b.To(a, 1, false).UDP(nil)), 1) // an answer, as there is still no session
	b.Step()
	wantPorts(t, a, 2)
	if n := seen.sent(2, wire.TypeInitiation); n != 0 {
		t.Errorf("the responder initiated %d handshakes of its own", n)
	}
}

// TestLanesReleaseNoIndex: to refuse an index may take a system call.
func TestLanesReleaseNoIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := &unheard{}
		lan := devicetest.NewLAN(seen.filter)
		a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{Stop: true})
		devicetest.Connect(a, b)
		b.Follow(tun.Event{Up: true, MTU: 1420})
		defer b.Shut()
		for range 4 {
			seen.heard.Store(false)
			a.PeerOf(b.Public()).Initiate()
			synctest.Wait()
			b.StepHandshakes()
			synctest.Wait()
			seen.heard.Store(true)
			a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
			b.Next()
			if current, unconfirmed := b.PeerOf(a.Public()).Sessions(); current == nil || current != unconfirmed {
				t.Fatal("no lane has published the session")
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := b.Indices(); n != 4 {
			t.Errorf("%d indices are bound, want those of all sessions", n)
		}
		if b.Step(); b.Indices() != 3 {
			t.Errorf("%d indices are bound once a worker has come, want 3", b.Indices())
		}
	})
}

// TestLateConfirmationLeavesNewerSession has a lane that was slow to report the session before the one that the peer uses now.
func TestLateConfirmationLeavesNewerSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen, a, b := unconfirmed(t)
		peer := b.PeerOf(a.Public())
		_, older := peer.Sessions()
		time.Sleep(time.Second)
		a.PeerOf(b.Public()).Initiate()
		synctest.Wait()
		b.StepHandshakes()
		synctest.Wait()
		_, newer := peer.Sessions()
		seen.heard.Store(true)
		a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
		b.Next() // so the newer session has been used
		peer.Confirm(older)
		b.Step()
		if current, unconfirmed := peer.Sessions(); current != newer || newer == older || unconfirmed != nil {
			t.Errorf("the session is %p and %p is unconfirmed, want %p and none, not %p", current, unconfirmed, newer, older)
		}
	})
}

// TestAnswerLeavesWhilePeerIsLocked: a responder's TUN may have an answer for a lane before a worker has promoted the session that the question
// came under. A peer that has begun anew has forgotten the session before.
func TestAnswerLeavesWhilePeerIsLocked(t *testing.T) {
	seen, a, b := unconfirmed(t)
	peer := b.PeerOf(a.Public())
	letGo := peer.Occupy()
	seen.heard.Store(true)
	a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
	b.Next() // so the session has been used, and the task to confirm it waits
	b.Send(flow.WithVnetHeader(b.To(a, 2, false).UDP(nil)))
	if got := a.Next(); len(got) != 1 {
		t.Fatalf("%d packets came back", len(got))
	}
	letGo()
	b.Step()
	if n := seen.sent(2, wire.TypeInitiation); n != 0 {
		t.Errorf("the responder initiated %d handshakes of its own", n)
	}
}

func TestReplayedInitiationIsRefused(t *testing.T) {
	lan := devicetest.NewLAN(nil)
	frozen := func() int64 { return int64(time.Hour) } // all come within MinInitiationInterval
	h, s := lan.Host(t, 1, devicetest.Options{Stop: true, Clock: frozen}), newStranger(t, lan, 66)
	h.Follow(tun.Event{Up: true, MTU: 1420})
	defer h.Shut()
	h.Apply(config.Device{Peers: []config.Peer{s.asPeer()}})
	msg := s.initiation(h, at(5))
	from := underlay.Endpoint{Dst: s.port.Endpoint(false).Dst}
	for i, c := range []struct {
		msg  []byte
		want drop.Reason
	}{
		{msg, drop.None},
		{msg, drop.HSReplay},
		{s.initiation(h, at(4)), drop.HSReplay},
		{s.initiation(h, at(6)), drop.HSFlood},
	} {
		if r := h.Handshake(c.msg, from); r != drop.None {
			t.Fatalf("message %d was not queued: %v", i, r)
		}
		if got := h.StepHandshakes(); len(got) != 1 || got[0] != c.want {
			t.Errorf("message %d: %v, want %v", i, got, c.want)
		}
	}
}

func TestUnknownPeerGetsNoResponse(t *testing.T) {
	lan := devicetest.NewLAN(nil)
	h, s := lan.Host(t, 1, devicetest.Options{}), newStranger(t, lan, 66)
	s.send(h, s.initiation(h, at(1)))
	h.Await("the initiation is refused", func() bool { return h.Drops(drop.HSUnknownPeer) == 1 })
	if h.Indices() != 0 {
		t.Error("a stranger holds a receiver index")
	}
}
