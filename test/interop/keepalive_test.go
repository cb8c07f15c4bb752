// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/expect"
)

const keepaliveSize = 32 // a data message without payload: header and tag

// TestPersistentKeepaliveNeedsNoTraffic configures a persistent keepalive on one side of an idle tunnel. That side initiates a
// handshake without traffic, and the other side then receives only keepalives.
func TestPersistentKeepaliveNeedsNoTraffic(t *testing.T) {
	forEachPairing(t, func(t *testing.T, p pairing) {
		for _, fromRight := range p.sides() {
			t.Run("from "+side(fromRight), func(t *testing.T) {
				t.Parallel()
				l := newLab(t, p, false)
				sender, other := l.pick(fromRight)
				interval := time.Second
				peer := l.peerOf(sender)
				peer.PersistentKeepaliveInterval = &interval
				other.start(t, sender.asPeer(netip.AddrPort{}, nil))
				sender.start(t, peer)
				wantHandshakes(t, l)
				before := other.peer(t).ReceiveBytes
				expect.EventuallyNoError(t, "three keepalives", func() error {
					if got := other.peer(t).ReceiveBytes - before; got < 3*keepaliveSize {
						return fmt.Errorf("%s received %d bytes", other, got)
					}
					return nil
				})
				if got := sender.peer(t).PersistentKeepaliveInterval; got != interval {
					t.Errorf("%s reports an interval of %s", sender, got)
				}
				other.noErrors(t)
				sender.noErrors(t)
			})
		}
	})
}

// TestReceiverAnswersOneWayDataWithKeepalive sends data in one direction only. The receiver sends a keepalive after 10 s, before
// the sender starts a new handshake after 15 s. A slow machine may miss that, so the test has several attempts. Spread is off: with it, a
// report may come first, and then no keepalive is due.
func TestReceiverAnswersOneWayDataWithKeepalive(t *testing.T) {
	forEachPairing(t, func(t *testing.T, p pairing) {
		for _, fromRight := range p.sides() {
			t.Run("data from "+side(fromRight), func(t *testing.T) {
				t.Parallel()
				l := newLab(t, p.withoutSpread(), false)
				l.start(t)
				sender, receiver := l.pick(fromRight)
				serveEcho(t, receiver.host)
				listenUDP(t, receiver.host, sinkPort)
				exchange(t, sender, receiver.inner4.Addr(), 10)
				wantHandshakes(t, l)
				for attempt := 1; ; attempt++ {
					got := receivedAfterSending(t, sender, receiver)
					if got == keepaliveSize {
						return
					}
					if attempt == 5 {
						t.Fatalf("got %s received %d bytes, want the %d of a keepalive", sender, got, keepaliveSize)
					}
				}
			})
		}
	})
}

// receivedAfterSending sends a datagram that no program answers. It returns the number of outer bytes that the sender then received.
func receivedAfterSending(t *testing.T, sender, receiver *tunnel) (bytes int64) {
	t.Helper()
	c, err := dialUDP(sender.host, netip.AddrPortFrom(receiver.inner4.Addr(), sinkPort))
	expect.NoError(t, err)
	defer c.Close()
	before := sender.peer(t).ReceiveBytes
	_, err = c.Write([]byte("no answer, please"))
	expect.NoError(t, err)
	expect.EventuallyNoError(t, "a keepalive", func() error {
		if bytes = sender.peer(t).ReceiveBytes - before; bytes == 0 {
			return fmt.Errorf("%s received nothing", sender)
		}
		return nil
	})
	return bytes
}
