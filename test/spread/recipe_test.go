// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"context"
	"os/exec"
	"strings"
	"testing"
)

// recipe is the configuration from "WireGuard IRQ distribution" (lists.zx2c4.com, May 2023), for both ends: each outgoing
// packet gets a source port from its IP ID, and each incoming one gets the listen port back.
const recipe = `table inet raw {
  chain POSTROUTING {
    type filter hook postrouting priority raw; policy accept;
    oifname "cable0" udp dport 51820 notrack udp sport set ip id
  }
  chain PREROUTING {
    type filter hook prerouting priority raw; policy accept;
    iifname "cable0" udp dport 51820 notrack udp sport set 51820
  }
}
`

// TestPortPerPacketReorders spreads the same traffic by packet: the queues are evenly loaded, but each flow uses all of them
// and is out of order. It proves that the other tests would detect reordering.
func TestPortPerPacketReorders(t *testing.T) {
	needKernel(t)
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skipf("needs nft(8): %v", err)
	}
	l := newLab(t)
	l.connectHosts(false, true)
	l.startKernel()
	for _, s := range l.both() {
		cmd := s.host.Command(context.Background(), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(recipe)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("setting up nftables: %v\n%s", err, out)
		}
	}
	o := l.send(rounds)
	t.Logf("by packet: %v", o)
	outOfOrder := l.transfer(streamBytes)
	t.Logf("by packet: TCP segments out of order: %d", outOfOrder)
	if outOfOrder == 0 {
		t.Error("no segment was out of order, so the other tests cannot detect reordering")
	}
	if o.movedFlows() != flowCount {
		t.Errorf("%d flows used more than one port, want all", o.movedFlows())
	}
}
