// SPDX-License-Identifier: Apache-2.0

package interop

import "testing"

// TestEndpointFollowsRoamingPeer changes one side's address and port in the middle of a TCP stream. The stream continues without
// loss, and the other side sends to the new endpoint.
func TestEndpointFollowsRoamingPeer(t *testing.T) {
	forEachPairing(t, func(t *testing.T, p pairing) {
		for _, rightMoves := range p.sides() {
			t.Run(side(rightMoves)+" moves", func(t *testing.T) {
				forBothFamilies(t, func(t *testing.T, v6 bool) {
					t.Parallel()
					l := newLab(t, p, v6)
					l.start(t)
					roaming, fixed := l.pick(rightMoves)
					serveEcho(t, roaming.host)
					serveEcho(t, fixed.host)
					exchange(t, roaming, fixed.inner4.Addr(), 100)
					l.wantEndpoint(t, fixed, roaming)
					bulk{
						from: roaming, to: fixed, streams: 1, bytes: 256 << 10,
						halfway: func() error { return l.roam(roaming) },
					}.run(t)
					l.wantEndpoint(t, fixed, roaming)
					exchange(t, fixed, roaming.inner6.Addr(), 100)
					exchange(t, roaming, fixed.inner6.Addr(), 100)
				})
			})
		}
	})
}
