// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"testing"
)

// TestTunnelRecoversAfterPeerRestart restarts one side, which loses its sessions. If that side sends first, it initiates a handshake
// at once. If the other side sends first, it initiates a handshake after 15 s without an answer.
func TestTunnelRecoversAfterPeerRestart(t *testing.T) {
	forEachPairing(t, func(t *testing.T, p pairing) {
		for _, rightRestarts := range p.sides() {
			for _, rightSends := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s restarts and %s sends", side(rightRestarts), side(rightSends)), func(t *testing.T) {
					t.Parallel()
					l := newLab(t, p, false)
					l.start(t)
					for _, x := range l.both() {
						serveEcho(t, x.host)
					}
					sender, other := l.pick(rightSends)
					exchange(t, sender, other.inner4.Addr(), 100)
					exchange(t, other, sender.inner4.Addr(), 100)
					restarted, _ := l.pick(rightRestarts)
					restarted.restart(t, l.peerOf(restarted))
					exchange(t, sender, other.inner6.Addr(), 100)
					exchange(t, other, sender.inner6.Addr(), 100)
					wantHandshakes(t, l)
				})
			}
		}
	})
}
