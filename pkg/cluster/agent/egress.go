// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
)

// egressDevices caches the device towards each peer: there may be thousands, and each lookup asks the kernel. The zero value is
// ready.
type egressDevices struct {
	mark    uint32 // of the tunnel's datagrams: rules that select by it route all other packets for a peer into the tunnel (Calico's host encryption)
	devices map[netip.Addr]string
	names   map[int]string // of devices, by index
}

// lookup returns the name of the device that packets to an address leave by. It returns "" if there is no route, if the address
// is not another host's, or if the route leads into a tunnel. A node that claims an address in a tunnel must not prevent
// spreading towards others.
func (e *egressDevices) lookup(addr netip.Addr) (device string, err error) {
	if device, ok := e.devices[addr]; ok {
		return device, nil
	}
	routes, err := netlink.RouteGetWithOptions(addr.AsSlice(), &netlink.RouteGetOptions{Mark: e.mark})
	if err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_UNICAST {
		if err == nil || slices.ContainsFunc(unreachableErrors(), func(no unix.Errno) bool { return errors.Is(err, no) }) {
			return "", nil // not cached: there may be a route later
		}
		return "", fmt.Errorf("looking up the route to peer %s: %w", addr, err)
	}
	if device, err = e.deviceName(routes[0].LinkIndex); err != nil {
		return "", fmt.Errorf("looking up the device towards peer %s: %w", addr, err)
	}
	if e.devices == nil {
		e.devices = map[netip.Addr]string{}
	}
	e.devices[addr] = device
	return device, nil
}

// deviceName returns a device's name, or "" if it cannot carry outer packets.
func (e *egressDevices) deviceName(index int) (string, error) {
	if name, ok := e.names[index]; ok {
		return name, nil
	}
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return "", err
	}
	name := link.Attrs().Name
	if link.Type() == "tuntap" || spreader.CheckDevice(link) != nil {
		name = ""
	}
	if e.names == nil {
		e.names = map[int]string{}
	}
	e.names[index] = name
	return name, nil
}

// unreachableErrors returns the kernel's errors for an address without a route, for unreachable, prohibit and blackhole routes,
// and for a host without IPv6. One peer with such an address must not prevent spreading towards others.
func unreachableErrors() []unix.Errno {
	return []unix.Errno{
		unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.EOPNOTSUPP, unix.EAFNOSUPPORT,
	}
}
