// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestStatefulFirewallGetsMessagesFromListenPort has a firewall in front of the receiver that admits only replies: to the receiver's
// handshake to the listen port, and to nothing from the source ports.
func TestStatefulFirewallGetsMessagesFromListenPort(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for half a minute")
	}
	r := newRig(t)
	err := r.there.lab.AcceptRepliesOnly(r.there.device)
	if errors.Is(err, netlab.ErrNoNftables) {
		t.Skip(err)
	}
	expect.NoError(t, err)
	sender, receiver := r.here.socket(port), r.there.socket(port)
	here, there := netip.AddrPortFrom(hereAddr, port), netip.AddrPortFrom(thereAddr, port)
	_, err = receiver.WriteToUDPAddrPort(message(0, 0)[:32], here) // as a handshake, of the connection that is admitted
	expect.NoError(t, err)
	r.here.attach(r.here.config())
	buf := make([]byte, 2048)
	expect.Eventually(t, "a data message arrives", func() bool {
		_, err := sender.WriteToUDPAddrPort(message(1, 1), there)
		expect.NoError(t, err)
		expect.NoError(t, receiver.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		_, from, err := receiver.ReadFromUDPAddrPort(buf)
		return err == nil && from == here
	})
	if st := r.here.status(); len(st.Problems) != 1 {
		t.Errorf("got status %+v, want the problem of the silent peer", st)
	}
}
