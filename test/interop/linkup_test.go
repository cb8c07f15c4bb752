// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/expect"
)

// TestPacketsAfterLinkUpArrive sends as soon as the call that sets the interface up has returned, which is before the daemon knows of it, and
// until the peer accepts the next handshake. Every packet must arrive, without spread in order. With it, a machine that stalls for the gap
// between flowlets may reorder.
func TestPacketsAfterLinkUpArrive(t *testing.T) {
	requireTUN(t)
	t.Parallel()
	for name, p := range map[string]pairing{"unspread": {unspread, unspread}, "spread": {ropewalk, ropewalk}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p.left.need(t)
			sendAfterLinkUp(t, p, name == "unspread")
		})
	}
}

func sendAfterLinkUp(t *testing.T, p pairing, inOrder bool) {
	t.Helper()
	l := newLab(t, p, false)
	l.start(t)
	in := listenUDP(t, l.right.host, sinkPort)
	out, err := dialUDP(l.left.host, netip.AddrPortFrom(l.right.inner4.Addr(), sinkPort))
	expect.NoError(t, err)
	defer func() { _ = out.Close() }()
	link, err := l.left.host.nl.LinkByName(l.left.ifname)
	expect.NoError(t, err)
	const links, packets = 20, 12 // a packet each 5 ms: a peer accepts one initiation in 50 ms
	for i := range uint32(links) {
		expect.NoError(t, in.SetReadDeadline(time.Now().Add(patience)))
		expect.NoError(t, l.left.host.nl.LinkSetDown(link))
		expect.NoError(t, l.left.host.nl.LinkSetUp(link))
		for j := range uint32(packets) {
			if _, err := out.Write(binary.BigEndian.AppendUint32(nil, i<<8|j)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		missing := map[uint32]bool{}
		for j := range uint32(packets) {
			missing[i<<8|j] = true
		}
		for j := range uint32(packets) {
			var got [4]byte
			if _, err := in.Read(got[:]); err != nil {
				t.Fatalf("link %d, packet %d: %v", i, j, err)
			}
			n := binary.BigEndian.Uint32(got[:])
			if !missing[n] || inOrder && n != i<<8|j {
				t.Fatalf("link %d: packet %d of link %d has arrived instead of %d", i, n&0xff, n>>8, j)
			}
			delete(missing, n)
		}
	}
}
