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
					mover, stayer := l.pick(rightMoves)
					serveEcho(t, mover.host)
					serveEcho(t, stayer.host)
					exchange(t, mover, stayer.inner4.Addr(), 100)
					l.wantEndpoint(t, stayer, mover)
					bulk{
						from: mover, to: stayer, streams: 1, bytes: 256 << 10,
						halfway: func() error { return l.roam(mover) },
					}.run(t)
					l.wantEndpoint(t, stayer, mover)
					exchange(t, stayer, mover.inner6.Addr(), 100)
					exchange(t, mover, stayer.inner6.Addr(), 100)
				})
			})
		}
	})
}
