// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// cardAddresses are the hardware addresses of the network cards that the machines of test/kernels have for these tests. Both are
// on one wire.
func cardAddresses() []string { return []string{"02:00:00:00:00:01", "02:00:00:00:00:02"} }

// findCards skips where there are none.
func findCards(t *testing.T) (cards []netlink.Link) {
	t.Helper()
	needs(t)
	if os.Getenv("ROPEWALK_INTEROP_CARDS") == "" {
		t.Skip("needs two network cards to play with (make test-kernels has them)")
	}
	list, err := net.Interfaces()
	must(t, err)
	for _, want := range cardAddresses() {
		for _, i := range list {
			if i.HardwareAddr.String() == want {
				l, err := netlink.LinkByIndex(i.Index)
				must(t, err)
				cards = append(cards, l)
			}
		}
	}
	if len(cards) != len(cardAddresses()) {
		t.Skipf("this machine has %d network cards, not two: the harness could not make them", len(cards))
	}
	return cards
}

// plugIn puts a card into a host, in the place of the cable, and takes it out again when the test ends.
func (h *host) plugIn(t *testing.T, card netlink.Link) {
	t.Helper()
	if l, err := h.nl.LinkByName(cable); err == nil {
		must(t, h.nl.LinkDel(l))
	}
	home, name := unix.Getpid(), card.Attrs().Name
	must(t, netlink.LinkSetNsFd(card, int(h.ns)))
	must(t, h.nl.LinkSetName(card, cable))
	t.Cleanup(func() {
		must(t, h.nl.LinkSetDown(card))
		must(t, h.nl.LinkSetName(card, name))
		must(t, h.nl.LinkSetNsPid(card, home))
	})
	must(t, h.setUp(cable))
}

// TestExpressUsesEveryQueueOfACard is about what a veth has not: a driver with queues of its own, and without copies where it can.
func TestExpressUsesEveryQueueOfACard(t *testing.T) {
	cards := findCards(t)
	for _, p := range []pairing{{express, express}, {express, inKernel}} {
		t.Run(p.String(), func(t *testing.T) {
			p.left.need(t)
			p.right.need(t)
			l := newLab(t, p, false)
			for i, x := range l.both() {
				x.host.plugIn(t, cards[i])
				must(t, x.host.addAddress(cable, l.outer[x]))
			}
			l.startByExpress(t)
			l.someTraffic(t)
			for _, x := range l.express() {
				x.wantClean(t)
				w, err := x.readWay(t)
				must(t, err)
				t.Logf("%s: %s, %d lanes, %+v", x, w.How, w.Lanes, w.XDP)
				if w.Lanes < 2 {
					t.Errorf("%s uses %d queues", x, w.Lanes)
				}
			}
		})
	}
}
