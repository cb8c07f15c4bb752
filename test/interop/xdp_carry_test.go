// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"os"
	"testing"
)

// TestXDPCarriesTrafficInBothDirections sends TCP streams and datagrams of all sizes over AF_XDP, up to the cable's MTU and beyond.
// Over IPv6 a full inner packet uses the cable's whole MTU.
func TestXDPCarriesTrafficInBothDirections(t *testing.T) {
	forPairings(t, xdpPairings(), func(t *testing.T, p pairing) {
		carryOverXDP(t, newLab(t, p, true))
	})
}

func TestXDPCarriesTrafficOverIPv4(t *testing.T) {
	forPairings(t, []pairing{{ropewalkXDP, ropewalkXDP}}, func(t *testing.T, p pairing) {
		carryOverXDP(t, newLab(t, p, false))
	})
}

func carryOverXDP(t *testing.T, l *lab) {
	t.Helper()
	l.startOverXDP(t)
	for _, x := range l.both() {
		l.carryFrom(t, x)
	}
	for _, x := range l.both() {
		wantCounters(t, x)
		x.noErrors(t)
	}
	for _, x := range l.xdpSides() {
		x.wantNoXDPErrors(t)
	}
}

// TestXDPRekeysWithoutPacketLoss is TestRekeysAfterTwoMinutesWithoutPacketLoss over AF_XDP. Handshake messages use the network stack,
// data messages bypass it.
func TestXDPRekeysWithoutPacketLoss(t *testing.T) {
	if os.Getenv("ROPEWALK_INTEROP_LONG") == "" {
		t.Skip("takes two minutes: set ROPEWALK_INTEROP_LONG=1 (make test-kernels does)")
	}
	forPairings(t, xdpPairings(), func(t *testing.T, p pairing) {
		l := newLab(t, p, false)
		l.startOverXDP(t)
		exchange(t, l.left, l.right.inner4.Addr(), 100)
		wantHandshakes(t, l)
		exchangeUntilRekey(t, l.left, l.right)
		for _, x := range l.xdpSides() {
			x.wantNoXDPErrors(t)
		}
	})
}

// TestXDPFollowsRoamingPeer changes either side's address and port in the middle of a TCP stream. The side that stays sends frames to
// the new address. The side that moves updates the port that its XDP program matches.
func TestXDPFollowsRoamingPeer(t *testing.T) {
	forPairings(t, []pairing{{ropewalkXDP, ropewalkXDP}}, func(t *testing.T, p pairing) {
		for _, rightMoves := range []bool{false, true} {
			t.Run(side(rightMoves)+" moves", func(t *testing.T) {
				forBothFamilies(t, func(t *testing.T, v6 bool) {
					l := newLab(t, p, v6)
					l.startOverXDP(t)
					roaming, fixed := l.pick(rightMoves)
					exchange(t, roaming, fixed.inner4.Addr(), 100)
					bulk{
						from: roaming, to: fixed, streams: 1, bytes: 256 << 10,
						halfway: func() error { return l.roam(roaming) },
					}.run(t)
					l.wantEndpoint(t, fixed, roaming)
					for _, x := range l.xdpSides() {
						l.wantXDPTraffic(t, x)
					}
				})
			})
		}
	})
}
