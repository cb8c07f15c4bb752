// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// xdpOn is ropewalk with the AF_XDP underlay on the queues of the given device.
func xdpOn(device string) implementation {
	x := ropewalkXDP
	x.start = func(t *testing.T, h *host, ifname string) func() error {
		t.Helper()
		return startDaemon(t, h, ropewalkBinary.Need(t), "run", "--underlay", "xdp", "--underlay-device", device, ifname)
	}
	return x
}

// stack creates an upper device on the cable at both ends and moves the outer addresses to it. It skips the test if the kernel does
// not support that type of device.
func (l *lab) stack(t *testing.T, add func(h *host, lower netlink.Link) (netlink.Link, error)) {
	t.Helper()
	for _, x := range l.both() {
		h := x.host
		lower, err := h.nl.LinkByName(cable)
		expect.NoError(t, err)
		expect.NoError(t, h.removeAddress(cable, l.outer[x]))
		upper, err := add(h, lower)
		if errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip("this kernel does not support the device type")
		}
		expect.NoError(t, err)
		expect.NoError(t, h.nl.LinkSetUp(upper))
		expect.NoError(t, h.addAddress(upper.Attrs().Name, l.outer[x]))
	}
}

func linkAttrs(name string) netlink.LinkAttrs {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	return attrs
}

// addVLAN adds a VLAN device on top of lower.
func addVLAN(h *host, lower netlink.Link) (netlink.Link, error) {
	attrs := linkAttrs("vlan7")
	attrs.ParentIndex = lower.Attrs().Index
	v := &netlink.Vlan{LinkAttrs: attrs, VlanId: 7}
	return v, h.nl.LinkAdd(v)
}

// addBond adds a bond device with lower as its only slave.
func addBond(h *host, lower netlink.Link) (netlink.Link, error) {
	b := netlink.NewLinkBond(linkAttrs("bond0"))
	b.Mode = netlink.BOND_MODE_ACTIVE_BACKUP
	b.Miimon = 100
	if err := h.nl.LinkAdd(b); err != nil {
		return nil, err
	}
	return b, errors.Join(h.nl.LinkSetDown(lower), h.nl.LinkSetMaster(lower, b), h.nl.LinkSetUp(lower))
}

// shortTransfer sends little enough for emulated machines and more than fits into any buffer.
func (l *lab) shortTransfer(t *testing.T) {
	t.Helper()
	for _, size := range []int{0, 1, mtu - 28, mtu - 27, 4000} {
		exchange(t, l.left, l.right.inner4.Addr(), size)
		exchange(t, l.right, l.left.inner4.Addr(), size)
	}
	bulk{from: l.left, to: l.right, streams: 2, bytes: 128 << 10}.run(t)
}

// TestXDPReachesPeersBehindVLAN uses the queues of the VLAN's lower device.
func TestXDPReachesPeersBehindVLAN(t *testing.T) {
	on := xdpOn(cable)
	forPairings(t, []pairing{{on, on}}, func(t *testing.T, p pairing) {
		forBothFamilies(t, func(t *testing.T, v6 bool) {
			l := newLab(t, p, v6)
			l.stack(t, addVLAN)
			l.startOverXDP(t)
			l.shortTransfer(t)
			for _, x := range l.xdpSides() {
				x.wantNoXDPErrors(t)
			}
		})
	})
}

// TestBondUsesSockets checks that a route over a bond selects UDP sockets, because the kernel selects the bond's slave.
func TestBondUsesSockets(t *testing.T) {
	forPairings(t, []pairing{{ropewalkXDP, ropewalk}}, func(t *testing.T, p pairing) {
		l := newLab(t, p, false)
		l.stack(t, addBond)
		l.start(t)
		for _, x := range l.both() {
			serveEcho(t, x.host)
		}
		l.shortTransfer(t)
		expect.EventuallyNoError(t, "bond0 as the reason for UDP sockets", func() error { // the path may not have been selected yet
			w, err := l.left.readDataPath(t)
			if err == nil && (w.Path != "udp" || !strings.Contains(w.Reason, "bond0") || w.sum().Sent != 0) {
				err = fmt.Errorf("%+v", w)
			}
			return err
		})
		l.left.noErrors(t)
	})
}
