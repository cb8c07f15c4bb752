// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Here returns the network namespace of the calling thread as a host. Closing the Lab leaves it as it is.
func (l *Lab) Here() (*Host, error) {
	ns, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("finding this network namespace: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	h := &Host{name: "this namespace", ns: ns}
	l.here = append(l.here, h)
	return h, nil
}

// port is a device that was moved into a host, and is moved back.
type port struct {
	device string
	from   *Host
	to     *Host
	up     bool
}

// ConnectPorts moves two devices, which are connected with each other already, from the host from
// into two hosts. It brings them up with the addresses of cfg. Closing the Lab moves them back,
// and up if they were. Devices in use are refused: the move would take their addresses and routes
// away.
func (l *Lab) ConnectPorts(from, a, b *Host, devices [2]string, cfg CableConfig) (*Cable, error) {
	for i, h := range []*Host{a, b} {
		if err := l.borrow(from, h, devices[i]); err != nil {
			return nil, fmt.Errorf("moving %s into %s: %w", devices[i], h.name, explain(err))
		}
	}
	err := errors.Join(a.SetUp(devices[0], 0, cfg.AddrsA...), b.SetUp(devices[1], 0, cfg.AddrsB...))
	if err == nil {
		err = errors.Join(a.waitUntilUp(devices[0]), b.waitUntilUp(devices[1]))
	}
	return &Cable{DeviceA: devices[0], DeviceB: devices[1]}, err
}

func (l *Lab) borrow(from, to *Host, device string) error {
	up, err := from.unused(device)
	if err != nil {
		return err
	}
	if err := from.Move(device, to); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ports = append(l.ports, port{device: device, from: from, to: to, up: up})
	return nil
}

// unused returns an error if a device has addresses or routes, besides the kernel's, belongs to
// another one, or has others above it. Otherwise it reports whether it is up.
func (h *Host) unused(device string) (up bool, err error) {
	err = h.netlink(func(nl *netlink.Handle) error {
		link, err := nl.LinkByName(device)
		if err != nil {
			return err
		}
		up = link.Attrs().RawFlags&unix.IFF_UP != 0
		if link.Attrs().MasterIndex != 0 {
			return errors.New("it is the port of a bridge or bond")
		}
		return cmp.Or(checkAddresses(nl, link), checkRoutes(nl, link.Attrs().Index), checkUppers(nl, link.Attrs().Index))
	})
	return up, err
}

func checkAddresses(nl *netlink.Handle, link netlink.Link) error {
	addrs, err := nl.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); !ok || !ip.Unmap().IsLinkLocalUnicast() {
			return fmt.Errorf("it is in use: it has the address %v", a.IPNet)
		}
	}
	return nil
}

// checkRoutes finds routes that do not come back by themselves, in all tables.
func checkRoutes(nl *netlink.Handle, index int) error {
	routes, err := nl.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("listing its routes: %w", err)
	}
	for i := range routes {
		r := &routes[i]
		leaves := r.LinkIndex == index || slices.ContainsFunc(r.MultiPath, func(hop *netlink.NexthopInfo) bool { return hop.LinkIndex == index })
		if leaves && r.Protocol != unix.RTPROT_KERNEL {
			return fmt.Errorf("it is in use: the route to %v leaves by it", r.Dst)
		}
	}
	return nil
}

// checkUppers finds VLANs, macvlans and other devices above it.
func checkUppers(nl *netlink.Handle, index int) error {
	links, err := nl.LinkList()
	if err != nil {
		return fmt.Errorf("listing the devices above it: %w", err)
	}
	for _, l := range links {
		vxlan, _ := l.(*netlink.Vxlan)
		if l.Attrs().ParentIndex == index && l.Type() != "veth" || vxlan != nil && vxlan.VtepDevIndex == index { // a veth's parent is its other end
			return fmt.Errorf("it is in use: %s %s is above it", l.Type(), l.Attrs().Name)
		}
	}
	return nil
}

// Move moves a device into another host.
func (h *Host) Move(device string, to *Host) error {
	ns, err := to.dup()
	if err != nil {
		return err
	}
	defer ns.Close()
	return h.netlink(func(nl *netlink.Handle) error {
		link, err := nl.LinkByName(device)
		if err != nil {
			return err
		}
		return nl.LinkSetNsFd(link, int(ns))
	})
}

// AddWireGuard creates an interface of the in-kernel WireGuard. Its sockets stay in the host when the interface is moved.
func (h *Host) AddWireGuard(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err := h.netlink(func(nl *netlink.Handle) error { return nl.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs}) })
	if err != nil {
		return fmt.Errorf("creating %s of the in-kernel WireGuard: %w", name, err)
	}
	return nil
}

// giveBack moves a port back.
func (p *port) giveBack() error {
	err := p.to.Move(p.device, p.from)
	if err == nil && p.up {
		err = p.from.SetUp(p.device, 0)
	}
	if err != nil {
		return fmt.Errorf("moving %s back: %w", p.device, err)
	}
	return nil
}
