// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// nicAddresses are the MAC addresses of the two NICs that the machines of test/kernels have for these tests. Both are on one
// Ethernet segment.
func nicAddresses() []string { return []string{"02:00:00:00:00:01", "02:00:00:00:00:02"} }

// findNICs returns the two NICs. It skips the test on machines without them.
func findNICs(t *testing.T) (nics []netlink.Link) {
	t.Helper()
	requireTUN(t)
	if os.Getenv("ROPEWALK_INTEROP_NICS") == "" {
		t.Skip("needs two NICs for this test alone (make test-kernels has them)")
	}
	list, err := net.Interfaces()
	expect.NoError(t, err)
	for _, want := range nicAddresses() {
		for _, i := range list {
			if i.HardwareAddr.String() == want {
				l, err := netlink.LinkByIndex(i.Index)
				expect.NoError(t, err)
				nics = append(nics, l)
			}
		}
	}
	if len(nics) != len(nicAddresses()) {
		t.Skipf("this machine has %d NICs, want 2: the harness could not create them", len(nics))
	}
	return nics
}

// attachNIC moves a NIC into a host, where it replaces the cable, and moves it back when the test ends.
func (h *host) attachNIC(t *testing.T, nic netlink.Link) {
	t.Helper()
	if l, err := h.nl.LinkByName(cable); err == nil {
		expect.NoError(t, h.nl.LinkDel(l))
	}
	home, name := unix.Getpid(), nic.Attrs().Name
	expect.NoError(t, netlink.LinkSetNsFd(nic, int(h.ns)))
	expect.NoError(t, h.nl.LinkSetName(nic, cable))
	t.Cleanup(func() {
		expect.NoError(t, h.nl.LinkSetDown(nic))
		expect.NoError(t, h.nl.LinkSetName(nic, name))
		expect.NoError(t, h.nl.LinkSetNsPid(nic, home))
	})
	expect.NoError(t, h.setUp(cable))
}

// TestXDPUsesEveryQueueOfNIC tests features that veth lacks: a driver with hardware queues, and zero-copy if the driver supports it.
func TestXDPUsesEveryQueueOfNIC(t *testing.T) {
	nics := findNICs(t)
	for _, p := range []pairing{{ropewalkXDP, ropewalkXDP}, {ropewalkXDP, inKernel}} {
		t.Run(p.String(), func(t *testing.T) {
			p.left.need(t)
			p.right.need(t)
			l := newLab(t, p, false)
			for i, x := range l.both() {
				x.host.attachNIC(t, nics[i])
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
