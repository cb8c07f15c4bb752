// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"context"
	"os/exec"
	"strings"
	"testing"
)

// recipe is what the author of the post did, at both ends: on the way out each packet takes its source port from its IP
// ID, on the way in the listen port is put back (lists.zx2c4.com, "WireGuard IRQ distribution", May 2023).
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

// TestPortPerPacketReorders shows what spreading by packet does, with the same traffic: the queues are even, each flow is on
// all of them, and out of order. So the tests that find nothing out of order would find it.
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
		t.Error("nothing came out of order, and nothing would have been noticed")
	}
	if o.movedFlows() != flowCount {
		t.Errorf("%d flows are on more than one port, want all: this is not the recipe", o.movedFlows())
	}
}
