// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// timeline notes when messages pass.
type timeline struct {
	lan  devicetest.LAN
	mu   sync.Mutex
	seen []passage
}

type passage struct {
	at   time.Time
	from netip.Addr
	kind wire.Type
	size int
}

func (l *timeline) filter(from, _ netip.AddrPort, datagram []byte) underlaytest.Verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(from, datagram)
	return underlaytest.Deliver
}

// note is called with mu held.
func (l *timeline) note(from netip.AddrPort, datagram []byte) {
	kind, _ := wire.Classify(datagram)
	l.seen = append(l.seen, passage{time.Now(), from.Addr(), kind, len(datagram)})
}

// take returns when host n has sent messages that match, since the last call of forget.
func (l *timeline) take(n byte, match func(passage) bool) (at []time.Time) {
	v4, _ := devicetest.Addresses(n)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.seen {
		if p.from == v4 && match(p) {
			at = append(at, p.at)
		}
	}
	return at
}

func (l *timeline) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = nil
}

func initiations(p passage) bool { return p.kind == wire.TypeInitiation }
func keepalives(p passage) bool  { return p.kind == wire.TypeData && p.size == wire.KeepaliveSize }
func anything(passage) bool      { return true }

// inBubble runs a test with two connected hosts, on a clock of its own.
func inBubble(t *testing.T, test func(t *testing.T, l *timeline, a, b *devicetest.Host)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &timeline{}
		l.lan = devicetest.NewLAN(l.filter)
		a, b := l.lan.Host(t, 1, devicetest.Options{}), l.lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		test(t, l, a, b)
	})
}

func TestOnlyTheInitiatorRekeysAfterTwoMinutesOfUse(t *testing.T) {
	inBubble(t, func(t *testing.T, l *timeline, a, b *devicetest.Host) {
		talk(t, a, b)
		for range 23 { // until 115 s
			time.Sleep(5 * time.Second)
			talk(t, a, b)
		}
		if n := len(l.take(1, initiations)); n != 1 {
			t.Fatalf("%d initiations in the first two minutes, want 1", n)
		}
		for range 3 { // until 130 s
			time.Sleep(5 * time.Second)
			carries(t, b, a, false, 100)
			talk(t, a, b)
		}
		if n, m := len(l.take(1, initiations)), len(l.take(2, initiations)); n != 2 || m != 0 {
			t.Errorf("%d and %d initiations, want 2 and 0", n, m)
		}
		wantNoDrops(t, a, b)
	})
}

// TestInitiatorThatOnlyReceivesRekeysBeforeTheEnd checks that the session is renewed before it expires after 180 s.
func TestInitiatorThatOnlyReceivesRekeysBeforeTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, l *timeline, a, b *devicetest.Host) {
		talk(t, a, b)
		for range 300 {
			time.Sleep(time.Second)
			carries(t, b, a, false, 100)
		}
		if n, m := len(l.take(1, initiations)), len(l.take(2, initiations)); n < 2 || m != 0 {
			t.Errorf("%d and %d initiations, want a rekey by the initiator", n, m)
		}
		wantNoDrops(t, a, b)
	})
}

func wantNoDrops(t *testing.T, hosts ...*devicetest.Host) {
	t.Helper()
	for _, h := range hosts {
		if d := h.AllDrops(); len(d) != 0 {
			t.Errorf("host %d dropped %v", h.N, d)
		}
	}
}

func TestSessionStopsSendingAfterThreeMinutes(t *testing.T) {
	inBubble(t, func(t *testing.T, l *timeline, a, b *devicetest.Host) {
		carries(t, a, b, false, 100) // one direction only, see peer.Activity about fast answers
		time.Sleep(181 * time.Second)
		l.forget()
		carries(t, b, a, true, 100) // the responder of then is the initiator of now
		if n, m := len(l.take(1, initiations)), len(l.take(2, initiations)); n != 0 || m != 1 {
			t.Errorf("%d and %d initiations, want 0 and 1", n, m)
		}
		talk(t, a, b)
		wantNoDrops(t, a, b)
	})
}

func TestKeysAreErasedAfterNineMinutes(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *timeline, a, b *devicetest.Host) {
		carries(t, a, b, false, 100) // one direction only, see peer.Activity about fast answers
		time.Sleep(539 * time.Second)
		if a.Indices() == 0 || b.Indices() == 0 {
			t.Error("keys were erased too early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if a.Indices() != 0 || b.Indices() != 0 {
			t.Errorf("%d and %d receiver indices are left", a.Indices(), b.Indices())
		}
		if current, next := a.PeerOf(b.Public()).Sessions(); current != nil || next != nil {
			t.Error("keys are left")
		}
		talk(t, a, b)
	})
}

// TestHandshakeRetriesWithJitterThenGivesUp: every 5 s and up to a third of a second, for 90 s.
func TestHandshakeRetriesWithJitterThenGivesUp(t *testing.T) {
	inBubble(t, func(t *testing.T, l *timeline, a, b *devicetest.Host) {
		down(b)
		newStranger(t, l.lan, b.N) // a peer that never answers
		begin := time.Now()
		a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
		time.Sleep(10 * time.Minute)
		at := l.take(1, initiations)
		if len(at) < 16 || len(at) > 19 {
			t.Fatalf("%d initiations, want about 18", len(at))
		}
		if last := at[len(at)-1].Sub(begin); last > 91*time.Second {
			t.Errorf("the last initiation came after %v", last)
		}
		wantJitter(t, at)
		if n := a.Drops(drop.TXStagedExpired); n != 1 || a.StagedBytes() != 0 {
			t.Errorf("%d staged packets were given up, want 1; %d bytes are left", n, a.StagedBytes())
		}
		if a.Indices() != 0 {
			t.Errorf("%d receiver indices are left", a.Indices())
		}
	})
}

func wantJitter(t *testing.T, at []time.Time) {
	t.Helper()
	different := map[time.Duration]bool{}
	for i := range at[1:] {
		gap := at[i+1].Sub(at[i])
		different[gap] = true
		if gap < 5*time.Second || gap > 5*time.Second+335*time.Millisecond {
			t.Errorf("retried after %v", gap)
		}
	}
	if len(different) < 3 {
		t.Error("no jitter between retries")
	}
}

func TestReceivedDataTriggersKeepaliveAfterTenSeconds(t *testing.T) {
	inBubble(t, func(t *testing.T, l *timeline, a, b *devicetest.Host) {
		talk(t, a, b)
		time.Sleep(time.Minute)
		l.forget()
		begin := time.Now()
		carries(t, a, b, false, 100)
		time.Sleep(time.Minute)
		at := l.take(2, keepalives) // besides a report of what has arrived
		if len(at) != 1 {
			t.Fatalf("%d keepalives came back, want one", len(at))
		}
		if after := at[0].Sub(begin); after < 10*time.Second || after > 11*time.Second {
			t.Errorf("the keepalive came after %v", after)
		}
		if n := len(l.take(1, keepalives)); n != 0 {
			t.Errorf("the keepalive was answered: got %d keepalives, want none", n)
		}
	})
}

func TestPersistentKeepaliveOnlyWhenIdle(t *testing.T) {
	inBubble(t, func(t *testing.T, l *timeline, a, b *devicetest.Host) {
		every := uint16(25)
		a.Apply(config.Device{Peers: []config.Peer{{PublicKey: b.Public(), Keepalive: &every}}})
		time.Sleep(time.Second)
		if len(l.take(1, initiations)) != 1 {
			t.Fatal("turning it on started no handshake")
		}
		l.forget()
		time.Sleep(101 * time.Second)
		if n := len(l.take(1, keepalives)); n != 4 {
			t.Errorf("%d keepalives in 100 s of silence, want 4", n)
		}
		l.forget()
		for range 20 {
			time.Sleep(8 * time.Second) // less than the passive keepalive's ten
			talk(t, a, b)
		}
		if n, m := len(l.take(1, keepalives)), len(l.take(1, initiations)); n > m { // a rekey without data ends in one
			t.Errorf("%d keepalives under traffic", n)
		}
	})
}

func TestUnansweredDataTriggersNewHandshake(t *testing.T) {
	inBubble(t, func(t *testing.T, l *timeline, a, b *devicetest.Host) {
		talk(t, a, b)
		time.Sleep(30 * time.Second)
		b.Close()
		newStranger(t, l.lan, b.N) // a peer that never answers
		l.forget()
		begin := time.Now()
		a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
		time.Sleep(17 * time.Second)
		at := l.take(1, initiations)
		if len(at) != 1 {
			t.Fatalf("%d initiations, want 1", len(at))
		}
		if after := at[0].Sub(begin); after < 15*time.Second || after > 16*time.Second {
			t.Errorf("the new handshake was tried after %v, want 15 s", after)
		}
	})
}

func TestIdleTunnelSendsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, l *timeline, a, b *devicetest.Host) {
		talk(t, a, b)
		time.Sleep(30 * time.Second)
		l.forget()
		time.Sleep(time.Hour)
		if n := len(l.take(1, anything)) + len(l.take(2, anything)); n != 0 {
			t.Errorf("%d messages in an hour without traffic", n)
		}
	})
}
