// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"os"
	"testing"
)

// TestExpressCarriesEverythingBothWays has datagrams of all sizes, up to the last byte of the cable's MTU and beyond, and
// TCP streams, go by AF_XDP. Over IPv6 the tunnel's MTU leaves no byte of the cable's.
func TestExpressCarriesEverythingBothWays(t *testing.T) {
	forPairings(t, expressPairings(), func(t *testing.T, p pairing) {
		carryByExpress(t, newLab(t, p, true))
	})
}

func TestExpressCarriesEverythingOverIPv4(t *testing.T) {
	forPairings(t, []pairing{{express, express}}, func(t *testing.T, p pairing) {
		carryByExpress(t, newLab(t, p, false))
	})
}

func carryByExpress(t *testing.T, l *lab) {
	t.Helper()
	l.startByExpress(t)
	for _, x := range l.both() {
		l.carryFrom(t, x)
	}
	for _, x := range l.both() {
		wantCounters(t, x)
		x.noErrors(t)
	}
	for _, x := range l.express() {
		x.wantClean(t)
	}
}

// TestExpressRekeysWithoutLosingAPacket is TestRekeysAfterTwoMinutesWithoutLosingAPacket by AF_XDP: handshakes go through the
// stack while data does not.
func TestExpressRekeysWithoutLosingAPacket(t *testing.T) {
	if os.Getenv("ROPEWALK_INTEROP_LONG") == "" {
		t.Skip("takes two minutes: set ROPEWALK_INTEROP_LONG=1 (make test-kernels does)")
	}
	forPairings(t, expressPairings(), func(t *testing.T, p pairing) {
		l := newLab(t, p, false)
		l.startByExpress(t)
		exchange(t, l.left, l.right.inner4.Addr(), 100)
		wantHandshakes(t, l)
		talkUntilRekeyed(t, l.left, l.right)
		for _, x := range l.express() {
			x.wantClean(t)
		}
	})
}

// TestExpressFollowsAPeerThatRoams has either side take another address and port in the middle of a TCP stream. The one that stays
// writes its frames to the new address, and the one that moves has its XDP program look for the new port.
func TestExpressFollowsAPeerThatRoams(t *testing.T) {
	forPairings(t, []pairing{{express, express}}, func(t *testing.T, p pairing) {
		for _, rightMoves := range []bool{false, true} {
			t.Run(side(rightMoves)+" moves", func(t *testing.T) {
				forBothFamilies(t, func(t *testing.T, v6 bool) {
					l := newLab(t, p, v6)
					l.startByExpress(t)
					mover, stayer := l.pick(rightMoves)
					exchange(t, mover, stayer.inner4.Addr(), 100)
					bulk{
						from: mover, to: stayer, streams: 1, bytes: 256 << 10,
						halfway: func() error { return l.roam(mover) },
					}.run(t)
					l.wantEndpoint(t, stayer, mover)
					for _, x := range l.express() {
						l.wantByXDP(t, x)
					}
				})
			})
		}
	})
}
