// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestFirewallFromTheStartLosesNothing has a firewall in front of the receiver that admits only replies: to the receiver's handshake to the
// listen port, and to nothing from the source ports. All messages arrive, since none leaves from a port that is not proved.
func TestFirewallFromTheStartLosesNothing(t *testing.T) {
	r := newRig(t)
	err := r.there.lab.AcceptRepliesOnly(r.there.device)
	if errors.Is(err, netlab.ErrNoNftables) {
		t.Skip(err)
	}
	expect.NoError(t, err)
	senders, receiver := r.senders(), r.there.socket(port)
	here, there := netip.AddrPortFrom(hereAddr, port), netip.AddrPortFrom(thereAddr, port)
	_, err = receiver.WriteToUDPAddrPort(message(0, 0)[:32], here) // as a handshake, of the connection that is admitted
	expect.NoError(t, err)
	r.here.attach(r.here.config())
	for n := range 100 * flows {
		_, err := senders[n%flows].WriteToUDPAddrPort(message(n%flows, n), there)
		expect.NoError(t, err)
		if a := r.receive(receiver); a.n != n || a.from != here {
			t.Fatalf("message %d: got %d from %v", n, a.n, a.from)
		}
	}
	if p := r.here.status().Tunnels[0].Peers[0]; !p.ProbeAnswered || p.Ready && len(p.Blocked) != len(p.Lanes) {
		t.Errorf("got %+v, want an answer from the listen port alone", p)
	}
}
