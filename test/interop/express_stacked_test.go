// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// expressOn is a ropewalk that uses the queues of a device that it is told.
func expressOn(device string) implementation {
	x := express
	x.start = func(t *testing.T, h *host, ifname string) func() error {
		t.Helper()
		return startDaemon(t, h, ropewalkBinary.Need(t), "run", "--underlay", "xdp", "--underlay-device", device, ifname)
	}
	return x
}

// stack puts a device upon the cable at both ends, and moves the outer addresses there. It skips where the kernel has no such
// device.
func (l *lab) stack(t *testing.T, add func(h *host, lower netlink.Link) (netlink.Link, error)) {
	t.Helper()
	for _, x := range l.both() {
		h := x.host
		lower, err := h.nl.LinkByName(cable)
		must(t, err)
		must(t, h.removeAddress(cable, l.outer[x]))
		upper, err := add(h, lower)
		if errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip("this kernel has no such device")
		}
		must(t, err)
		must(t, h.nl.LinkSetUp(upper))
		must(t, h.addAddress(upper.Attrs().Name, l.outer[x]))
	}
}

func named(name string) netlink.LinkAttrs {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	return attrs
}

// addVLAN adds a VLAN upon a device.
func addVLAN(h *host, lower netlink.Link) (netlink.Link, error) {
	attrs := named("vlan7")
	attrs.ParentIndex = lower.Attrs().Index
	v := &netlink.Vlan{LinkAttrs: attrs, VlanId: 7}
	return v, h.nl.LinkAdd(v)
}

// addBond makes a device the only part of a bond.
func addBond(h *host, lower netlink.Link) (netlink.Link, error) {
	b := netlink.NewLinkBond(named("bond0"))
	b.Mode = netlink.BOND_MODE_ACTIVE_BACKUP
	b.Miimon = 100
	if err := h.nl.LinkAdd(b); err != nil {
		return nil, err
	}
	return b, errors.Join(h.nl.LinkSetDown(lower), h.nl.LinkSetMaster(lower, b), h.nl.LinkSetUp(lower))
}

// someTraffic is little, for emulated machines, and more than what fits in any buffer.
func (l *lab) someTraffic(t *testing.T) {
	t.Helper()
	for _, size := range []int{0, 1, mtu - 28, mtu - 27, 4000} {
		exchange(t, l.left, l.right.inner4.Addr(), size)
		exchange(t, l.right, l.left.inner4.Addr(), size)
	}
	bulk{from: l.left, to: l.right, streams: 2, bytes: 128 << 10}.run(t)
}

// TestExpressReachesPeersBehindAVLAN by the queues of the device that the VLAN is upon.
func TestExpressReachesPeersBehindAVLAN(t *testing.T) {
	on := expressOn(cable)
	forPairings(t, []pairing{{on, on}}, func(t *testing.T, p pairing) {
		forBothFamilies(t, func(t *testing.T, v6 bool) {
			l := newLab(t, p, v6)
			l.stack(t, addVLAN)
			l.startByExpress(t)
			l.someTraffic(t)
			for _, x := range l.express() {
				x.wantClean(t)
			}
		})
	})
}

// TestABondGoesBySockets: what leads to one is the kernel's to distribute.
func TestABondGoesBySockets(t *testing.T) {
	forPairings(t, []pairing{{express, ropewalk}}, func(t *testing.T, p pairing) {
		l := newLab(t, p, false)
		l.stack(t, addBond)
		l.start(t)
		for _, x := range l.both() {
			serveEcho(t, x.host)
		}
		l.someTraffic(t)
		eventually(t, "the reason", patience, func() error { // the way may not have been chosen yet
			w, err := l.left.readWay(t)
			if err == nil && (w.Way != "udp" || !strings.Contains(w.Reason, "bond0") || w.sum().Sent != 0) {
				err = fmt.Errorf("%+v", w)
			}
			return err
		})
		l.left.noErrors(t)
	})
}
