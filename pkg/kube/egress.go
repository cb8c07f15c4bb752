// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// egressDevices are the devices that lead to other nodes. What was found is kept: there may be thousands, and the kernel is asked for
// each. The zero value knows none.
type egressDevices struct {
	devices map[netip.Addr]string
	names   map[int]string // of the devices, by index
}

// configsFor returns the name of the device that the routes lead to an address by, "" if there is none, if the address is no other
// host's, or if it is reached through a tunnel. A node that claims an address in there must not keep the others from being
// spread towards.
func (w *egressDevices) lookup(addr netip.Addr) (device string, err error) {
	if device, ok := w.devices[addr]; ok {
		return device, nil
	}
	routes, err := netlink.RouteGet(addr.AsSlice())
	if err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_UNICAST {
		if err == nil || slices.ContainsFunc(unreachableErrors(), func(no unix.Errno) bool { return errors.Is(err, no) }) {
			return "", nil // there may be one later
		}
		return "", fmt.Errorf("looking for the route to %s: %w", addr, err)
	}
	if device, err = w.deviceName(routes[0].LinkIndex); err != nil {
		return "", fmt.Errorf("looking for the device towards %s: %w", addr, err)
	}
	if w.devices == nil {
		w.devices = map[netip.Addr]string{}
	}
	w.devices[addr] = device
	return device, nil
}

// deviceName returns that of a device, "" for one that no outer packets leave by.
func (w *egressDevices) deviceName(index int) (string, error) {
	if name, ok := w.names[index]; ok {
		return name, nil
	}
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return "", err
	}
	name := link.Attrs().Name
	if link.Type() == "wireguard" || link.Type() == "tuntap" || link.Attrs().Flags&net.FlagLoopback != 0 {
		name = ""
	}
	if w.names == nil {
		w.names = map[int]string{}
	}
	w.names[index] = name
	return name, nil
}

// unreachableErrors are what the kernel answers where no route leads to an address, or one that is unreachable, prohibit or blackhole,
// and where it has no IPv6: nothing that one peer is to keep the others from being spread towards for.
func unreachableErrors() []unix.Errno {
	return []unix.Errno{
		unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.EOPNOTSUPP, unix.EAFNOSUPPORT,
	}
}
