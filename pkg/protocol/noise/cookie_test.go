// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"errors"
	"io"
	"net/netip"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

func testSource(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), port)
}

// giveCookie puts a cookie for port 1000 into the jar, at instant 0: the jar's side sends msg and gets a reply.
func giveCookie(t testing.TB, checker *CookieChecker, jar *CookieJar, msg []byte) {
	t.Helper()
	if reason := jar.ConsumeReply(replyTo(t, checker, jar, msg, 0), 0); reason != drop.None {
		t.Fatalf("consuming the cookie reply: got drop reason %v", reason)
	}
}

// replyTo sends msg from port 1000 and returns the cookie reply.
func replyTo(t testing.TB, checker *CookieChecker, jar *CookieJar, msg []byte, now int64) []byte {
	t.Helper()
	if err := jar.AddMACs(msg, now); err != nil {
		t.Fatal(err)
	}
	if ok1, _ := checker.Check(msg, testSource(1000), now); !ok1 {
		t.Fatal("mac1 is invalid, want it valid")
	}
	reply := new(wire.CookieReply)
	if err := checker.CreateReply(reply, msg, testSource(1000), now, source(byte(now/1e9))); err != nil {
		t.Fatal(err)
	}
	return reply[:]
}

// cookieCase is an initiation on its way to a checker.
func cookieCase(t testing.TB) (checker *CookieChecker, jar *CookieJar, msg []byte) {
	t.Helper()
	a, b := newSides(t)
	_, initiation := initiate(t, a)
	return NewCookieChecker(b.Public()), NewCookieJar(a.remote), initiation[:]
}

func TestCookieMakesTheNextMessageAcceptable(t *testing.T) {
	checker, jar, msg := cookieCase(t)
	reply := replyTo(t, checker, jar, msg, 0)
	if _, ok2 := checker.Check(msg, testSource(1000), 0); ok2 {
		t.Error("mac2 is valid without a cookie, want it invalid")
	}
	if got := wire.ReceiverIndex(reply); got != 0xa1 {
		t.Errorf("got receiver index %#x, want 0xa1", got)
	}
	if reason := jar.ConsumeReply(reply, 0); reason != drop.None {
		t.Fatalf("consuming the cookie reply: got drop reason %v", reason)
	}
	for range 2 { // a cookie serves until it expires
		if err := jar.AddMACs(msg, 1); err != nil {
			t.Fatal(err)
		}
		if ok1, ok2 := checker.Check(msg, testSource(1000), 1); !ok1 || !ok2 {
			t.Errorf("MACs of the initiation with the cookie: got mac1 %v, mac2 %v, want both valid", ok1, ok2)
		}
	}
}

func TestResponsesCarryCookiesToo(t *testing.T) {
	a, b := newSides(t)
	_, initiation := initiate(t, a)
	_, response := respond(t, accept(t, b, initiation[:]), PresharedKey{})
	checker, jar := NewCookieChecker(a.Public()), NewCookieJar(b.remote)
	giveCookie(t, checker, jar, response[:])
	if err := jar.AddMACs(response[:], 1); err != nil {
		t.Fatal(err)
	}
	if ok1, ok2 := checker.Check(response[:], testSource(1000), 1); !ok1 || !ok2 {
		t.Errorf("MACs of the response with the cookie: got mac1 %v, mac2 %v, want both valid", ok1, ok2)
	}
}

func TestCookieIsBoundToAddressAndPort(t *testing.T) {
	checker, jar, msg := cookieCase(t)
	giveCookie(t, checker, jar, msg)
	if err := jar.AddMACs(msg, 0); err != nil {
		t.Fatal(err)
	}
	for src, want := range map[string]bool{
		"192.0.2.1:1000":          true,
		"[::ffff:192.0.2.1]:1000": true, // how a dual-stack socket sees it
		"192.0.2.1:1001":          false,
		"192.0.2.2:1000":          false,
		"[2001:db8::1]:1000":      false,
	} {
		if ok1, ok2 := checker.Check(msg, netip.MustParseAddrPort(src), 0); !ok1 || ok2 != want {
			t.Errorf("source %s: got mac1 %v, mac2 %v, want true, %v", src, ok1, ok2, want)
		}
	}
}

func TestCookieExpiresAfterTwoMinutes(t *testing.T) {
	for _, tc := range []struct {
		age       int64
		want      bool
		hasCookie bool
	}{
		{0, true, true},
		{CookieLifetime - 1, true, true},
		{CookieLifetime, false, false},
		{10 * CookieLifetime, false, false},
	} {
		checker, jar, msg := cookieCase(t)
		giveCookie(t, checker, jar, msg)
		if err := jar.AddMACs(msg, tc.age); err != nil {
			t.Fatal(err)
		}
		if _, ok2 := checker.Check(msg, testSource(1000), tc.age); ok2 != tc.want {
			t.Errorf("mac2 checked %d ns after the cookie reply: got %v, want %v", tc.age, ok2, tc.want)
		}
		macs, _ := wire.SplitMACs(msg)
		if has := *macs.MAC2 != [16]byte{}; has != tc.hasCookie {
			t.Errorf("mac2 sent %d ns after the cookie reply: got present %v, want %v", tc.age, has, tc.hasCookie)
		}
	}
}

func TestSecretIsRenewedOnlyWhenItIsOld(t *testing.T) {
	checker, jar, msg := cookieCase(t)
	giveCookie(t, checker, jar, msg)
	first := checker.secret
	for _, tc := range []struct {
		now     int64
		renewed bool
	}{
		{CookieLifetime - 1, false},
		{CookieLifetime, true},
	} {
		replyTo(t, checker, jar, msg, tc.now)
		if renewed := checker.secret != first; renewed != tc.renewed {
			t.Errorf("after %d ns: got a new cookie secret %v, want %v", tc.now, renewed, tc.renewed)
		}
	}
}

func TestInvalidCookieRepliesAreRejectedWithoutEffect(t *testing.T) {
	checker, jar, msg := cookieCase(t)
	early := replyTo(t, checker, jar, msg, 0)
	copy(msg[8:], "another ephemeral key")
	reply := replyTo(t, checker, jar, msg, 1)
	_, stranger, _ := cookieCase(t)
	if reason := stranger.ConsumeReply(reply, 0); reason != drop.HSBadCookie {
		t.Errorf("reply to no message: got drop reason %v, want %v", reason, drop.HSBadCookie)
	}
	if reason := jar.ConsumeReply(early, 0); reason != drop.HSBadCookie {
		t.Errorf("reply to the previous message: got drop reason %v, want %v", reason, drop.HSBadCookie)
	}
	if reason := jar.ConsumeReply(reply[:63], 0); reason != drop.RXBadLength {
		t.Errorf("truncated reply: got drop reason %v, want %v", reason, drop.RXBadLength)
	}
	if reason := jar.ConsumeReply(msg, 0); reason != drop.RXBadType {
		t.Errorf("initiation instead of a reply: got drop reason %v, want %v", reason, drop.RXBadType)
	}
	for at := range reply {
		if at >= 4 && at < 8 { // the receiver index only finds the peer
			continue
		}
		for _, bad := range flips(reply, at) {
			if reason := jar.ConsumeReply(bad, 0); reason == drop.None || jar.valid || !jar.replyPending {
				t.Errorf("byte %d changed: got drop reason %v, want a reason and unchanged state", at, reason)
			}
		}
	}
	for n, want := range []drop.Reason{drop.None, drop.HSBadCookie} { // the genuine one counts, once
		if reason := jar.ConsumeReply(reply, 0); reason != want || !jar.valid {
			t.Errorf("genuine reply, call %d: got drop reason %v, want %v, with a cookie kept", n+1, reason, want)
		}
	}
}

func TestWipedJarHasNoCookie(t *testing.T) {
	checker, jar, msg := cookieCase(t)
	giveCookie(t, checker, jar, msg)
	reply := replyTo(t, checker, jar, msg, 0)
	jar.Wipe()
	if reason := jar.ConsumeReply(reply, 0); reason != drop.HSBadCookie {
		t.Errorf("reply after Wipe: got drop reason %v, want %v", reason, drop.HSBadCookie)
	}
	if err := jar.AddMACs(msg, 0); err != nil {
		t.Fatal(err)
	}
	if ok1, ok2 := checker.Check(msg, testSource(1000), 0); !ok1 || ok2 {
		t.Errorf("MACs after Wipe: got mac1 %v, mac2 %v, want true, false", ok1, ok2)
	}
}

func TestMACsAreOnlyForHandshakeMessages(t *testing.T) {
	checker, jar, msg := cookieCase(t)
	reply := replyTo(t, checker, jar, msg, 0)
	for _, b := range [][]byte{nil, msg[:147], reply, make([]byte, 148)} {
		if err := jar.AddMACs(b, 0); !errors.Is(err, ErrNoHandshakeMessage) {
			t.Errorf("AddMACs to %d bytes: got error %v, want %v", len(b), err, ErrNoHandshakeMessage)
		}
		if ok1, ok2 := checker.Check(b, testSource(1000), 0); ok1 || ok2 {
			t.Errorf("Check of %d bytes: got mac1 %v, mac2 %v, want false, false", len(b), ok1, ok2)
		}
		err := checker.CreateReply(new(wire.CookieReply), b, testSource(1000), 0, source(1))
		if !errors.Is(err, ErrNoHandshakeMessage) {
			t.Errorf("CreateReply to %d bytes: got error %v, want %v", len(b), err, ErrNoHandshakeMessage)
		}
	}
}

func TestMAC1IsBoundToReceiver(t *testing.T) {
	_, jar, msg := cookieCase(t)
	if err := jar.AddMACs(msg, 0); err != nil {
		t.Fatal(err)
	}
	other := NewCookieChecker(newIdentity(t, 5).Public())
	if ok1, ok2 := other.Check(msg, testSource(1000), 0); ok1 || ok2 {
		t.Errorf("MACs for another public key: got mac1 %v, mac2 %v, want false, false", ok1, ok2)
	}
}

func TestFailingRandomnessGivesNoCookie(t *testing.T) {
	checker, jar, msg := cookieCase(t)
	replyTo(t, checker, jar, msg, 0)
	for _, now := range []int64{1, CookieLifetime} { // for the nonce, and for the secret
		reply := new(wire.CookieReply)
		err := checker.CreateReply(reply, msg, testSource(1000), now, iotest.ErrReader(io.ErrClosedPipe))
		if !errors.Is(err, io.ErrClosedPipe) || [32]byte(reply.Cookie()) != [32]byte{} {
			t.Errorf("time %d: got error %v, want %v and an empty cookie", now, err, io.ErrClosedPipe)
		}
	}
	if checker.valid {
		t.Error("the old secret is still valid after a failed renewal")
	}
}

func TestCookiesAreSafeForConcurrentUse(t *testing.T) {
	checker, jar, msg := cookieCase(t)
	giveCookie(t, checker, jar, msg)
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			mine := append([]byte(nil), msg...)
			mine[8] = byte(n)
			for now := range int64(50) {
				if err := jar.AddMACs(mine, now); err != nil {
					t.Error(err)
				}
				if ok1, ok2 := checker.Check(mine, testSource(1000), now); !ok1 || !ok2 {
					t.Error("got an invalid MAC, want both valid")
				}
				reply := new(wire.CookieReply)
				if err := checker.CreateReply(reply, mine, testSource(1000), now, source(byte(n))); err != nil {
					t.Error(err)
				}
				jar.ConsumeReply(reply[:], now) // rejected when another goroutine was later with its message
			}
		})
	}
	wg.Wait()
}
