// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"os"
	"testing"
	"time"
)

// TestRekeysAfterTwoMinutesWithoutPacketLoss exchanges datagrams until both sides have replaced their session. The initiator starts
// a new session when it sends after 120 s. Each datagram is sent once, so one lost datagram fails the test.
func TestRekeysAfterTwoMinutesWithoutPacketLoss(t *testing.T) {
	if os.Getenv("ROPEWALK_INTEROP_LONG") == "" {
		t.Skip("takes two minutes: set ROPEWALK_INTEROP_LONG=1 (make test-kernels does)")
	}
	forEachPairing(t, func(t *testing.T, p pairing) {
		for _, fromRight := range p.sides() {
			t.Run(side(fromRight)+" first", func(t *testing.T) {
				t.Parallel()
				l := newLab(t, p, false)
				l.start(t)
				first, second := l.pick(fromRight)
				serveEcho(t, second.host)
				exchange(t, first, second.inner4.Addr(), 100)
				wantHandshakes(t, l)
				exchangeUntilRekey(t, first, second)
			})
		}
	})
}

func exchangeUntilRekey(t *testing.T, first, second *tunnel) {
	t.Helper()
	const rekeyLimit = 240 * time.Second // 120 s, plus time for lost handshakes on a slow machine
	began := time.Now()
	firstShaken, secondShaken := first.handshake(t), second.handshake(t)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for first.handshake(t).Equal(firstShaken) || second.handshake(t).Equal(secondShaken) {
		if time.Since(began) > rekeyLimit {
			t.Fatalf("no new handshake within %s", rekeyLimit)
		}
		if err := tryExchange(first, second.inner4.Addr(), 100, patience, 0); err != nil {
			t.Fatalf("%s after the handshake: %v", time.Since(firstShaken), err)
		}
		<-tick.C
	}
	if err := tryExchange(first, second.inner6.Addr(), 100, patience, 0); err != nil {
		t.Errorf("after the rekey: %v", err)
	}
}
