// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// TestRefusedRunsKeepTheirECN: a run that is sent again, without its source address and datagram by datagram, keeps its
// ECN.
func TestRefusedRunsKeepTheirECN(t *testing.T) {
	requireNamespace(t)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetMTU(lo, 1400); err != nil {
		t.Fatal(err)
	}
	a, b := open(t, Config{}), open(t, Config{})
	rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
	for _, src := range []string{"192.0.2.9", "2001:db8::9"} {
		const segSize, size = 1452, 1452 + 9
		to := loopback(b, src == "2001:db8::9")
		to.Src = netip.MustParseAddr(src)
		runs := []underlay.Run{{To: &to, Parts: [][]byte{make([]byte, size)}, SegSize: segSize, Segments: 2, ECN: packet.ECT0}}
		if a.Lane(0).Send(runs) != 0 {
			t.Fatal(runs[0].Err)
		}
		for got := 0; got < size; got += rx[0].N {
			if _, err := b.Lane(0).Recv(rx); err != nil {
				t.Fatal(err)
			}
			if rx[0].ECN != packet.ECT0 {
				t.Errorf("source %v: got %d bytes with ECN %d, want that of the run", to.Src, rx[0].N, rx[0].ECN)
			}
		}
	}
}
