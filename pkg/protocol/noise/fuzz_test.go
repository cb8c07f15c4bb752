// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"bytes"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// seed adds a genuine message, the same shortened and lengthened, and bytes of its size.
func seed(f *testing.F, genuine []byte) {
	f.Helper()
	f.Add(genuine)
	f.Add(genuine[:len(genuine)-1])
	f.Add(append(bytes.Clone(genuine), 0))
	f.Add(append(bytes.Clone(genuine[:4]), make([]byte, len(genuine)-4)...))
}

// FuzzConsumeInitiation checks that nothing but the genuine initiation is authenticated.
func FuzzConsumeInitiation(f *testing.F) {
	a, b := newSides(f)
	_, genuine := initiate(f, a)
	seed(f, genuine[:])
	f.Fuzz(func(t *testing.T, msg []byte) {
		r := NewResponder(b.Identity)
		public, reason := r.ConsumeInitiation(msg)
		if reason != drop.None && (!public.IsZero() || r.stage != idle) {
			t.Fatal("a rejected initiation changed the responder's state")
		}
		if reason != drop.None || public != b.remote.public {
			return
		}
		if _, reason = r.Authenticate(b.remote); reason == drop.None && !bytes.Equal(msg[8:116], genuine[8:116]) {
			t.Fatalf("a forged initiation was authenticated: %x", msg)
		}
	})
}

// FuzzConsumeResponse checks that nothing but the genuine response is accepted, and that anything else changes nothing.
func FuzzConsumeResponse(f *testing.F) {
	a, b := newSides(f)
	i, initiation := initiate(f, a)
	_, genuine := respond(f, accept(f, b, initiation[:]), PresharedKey{})
	seed(f, genuine[:])
	f.Fuzz(func(t *testing.T, msg []byte) {
		mine := *i
		_, reason := mine.ConsumeResponse(msg, &PresharedKey{})
		if reason == drop.None && !bytes.Equal(msg[8:60], genuine[8:60]) {
			t.Fatalf("a forged response was accepted: %x", msg)
		}
		if reason != drop.None && mine != *i {
			t.Fatal("a rejected response changed the initiator's state")
		}
	})
}

// FuzzConsumeReply checks that nothing but the genuine cookie reply is accepted, and that anything else changes nothing.
func FuzzConsumeReply(f *testing.F) {
	a, b := newSides(f)
	_, initiation := initiate(f, a)
	checker := NewCookieChecker(b.Public())
	genuine := replyTo(f, checker, NewCookieJar(a.remote), initiation[:], 0)
	seed(f, genuine)
	f.Fuzz(func(t *testing.T, msg []byte) {
		jar := NewCookieJar(a.remote)
		if err := jar.AddMACs(initiation[:], 0); err != nil {
			t.Fatal(err)
		}
		reason := jar.ConsumeReply(msg, 0)
		if reason == drop.None && !bytes.Equal(msg[8:], genuine[8:]) {
			t.Fatalf("a forged cookie reply was accepted: %x", msg)
		}
		if (reason == drop.None) != jar.valid {
			t.Fatalf("got cookie valid %v, drop reason %v: want a cookie only without a reason", jar.valid, reason)
		}
	})
}

// FuzzCheck checks that MACs are rejected or right, whatever the message.
func FuzzCheck(f *testing.F) {
	a, b := newSides(f)
	_, initiation := initiate(f, a)
	checker, jar := NewCookieChecker(b.Public()), NewCookieJar(a.remote)
	giveCookie(f, checker, jar, initiation[:])
	if err := jar.AddMACs(initiation[:], 0); err != nil {
		f.Fatal(err)
	}
	seed(f, initiation[:])
	f.Fuzz(func(t *testing.T, msg []byte) {
		ok1, ok2 := checker.Check(msg, testSource(1000), 0)
		if ok2 && !ok1 {
			t.Fatal("mac2 is valid but mac1 is not")
		}
		if _, reason := wire.SplitMACs(msg); ok1 && reason != drop.None {
			t.Fatal("got valid MACs in a message that is not a handshake message")
		}
	})
}
