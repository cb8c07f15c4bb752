// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/ropewalk/ropewalk/test/expect"
)

// nicAddresses are the MAC addresses of the two NICs that the machines of test/kernels have for these tests. Both are on one
// Ethernet segment.
func nicAddresses() []string { return []string{"02:00:00:00:00:01", "02:00:00:00:00:02"} }

// requireNICs skips the test on machines without the two NICs.
func requireNICs(t *testing.T) {
	t.Helper()
	requireTUN(t)
	if os.Getenv("ROPEWALK_INTEROP_NICS") == "" {
		t.Skip("needs two NICs for this test alone (make test-kernels has them)")
	}
	links, err := netlink.LinkList()
	expect.NoError(t, err)
	for _, address := range nicAddresses() {
		if findNIC(links, address) == nil {
			t.Skipf("this machine has no NIC %s: the harness could not create it", address)
		}
	}
}

// findNIC returns the NIC with a MAC address, or nil.
func findNIC(links []netlink.Link, address string) netlink.Link {
	at := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().HardwareAddr.String() == address })
	if at < 0 {
		return nil
	}
	return links[at]
}

// attachNIC moves a NIC into a host, where it replaces the cable, and moves it back when the test ends. In each namespace the
// NIC gets another index if a device of a concurrent test has its present one.
func (h *host) attachNIC(t *testing.T, address string) {
	t.Helper()
	if l, err := h.nl.LinkByName(cable); err == nil {
		expect.NoError(t, h.nl.LinkDel(l))
	}
	links, err := netlink.LinkList()
	expect.NoError(t, err)
	outside := findNIC(links, address)
	if outside == nil {
		t.Fatalf("the NIC %s has not returned from the test before", address)
	}
	home, err := netns.Get() // the process's main thread may be in another one, so its PID does not name it
	expect.NoError(t, err)
	t.Cleanup(func() { _ = home.Close() })
	expect.NoError(t, netlink.LinkSetNsFd(outside, int(h.ns)))
	links, err = h.nl.LinkList()
	expect.NoError(t, err)
	nic := findNIC(links, address)
	expect.NoError(t, h.nl.LinkSetName(nic, cable))
	t.Cleanup(func() {
		expect.NoError(t, h.nl.LinkSetDown(nic))
		expect.NoError(t, h.nl.LinkSetName(nic, outside.Attrs().Name))
		expect.NoError(t, h.nl.LinkSetNsFd(nic, int(home)))
	})
	expect.NoError(t, h.setUp(cable))
}

// TestXDPUsesEveryQueueOfNIC tests features that veth lacks: a driver with hardware queues, and zero-copy if the driver supports it.
func TestXDPUsesEveryQueueOfNIC(t *testing.T) {
	requireNICs(t)
	for _, p := range []pairing{{ropewalkXDP, ropewalkXDP}, {ropewalkXDP, inKernel}} {
		t.Run(p.String(), func(t *testing.T) {
			p.left.need(t)
			p.right.need(t)
			l := newLab(t, p, false)
			for i, x := range l.both() {
				x.host.attachNIC(t, nicAddresses()[i])
				expect.NoError(t, x.host.addAddress(cable, l.outer[x]))
			}
			l.startOverXDP(t)
			l.shortTransfer(t)
			for _, x := range l.xdpSides() {
				x.wantNoXDPErrors(t)
				w, err := x.readDataPath(t)
				expect.NoError(t, err)
				t.Logf("%s: %s, %d lanes, %+v", x, w.How, w.Lanes, w.XDP)
				if w.Lanes < 2 {
					t.Errorf("%s uses %d queues, want at least 2", x, w.Lanes)
				}
			}
		})
	}
}
