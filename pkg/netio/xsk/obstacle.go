// SPDX-License-Identifier: Apache-2.0

package xsk

import "fmt"

// Device holds the properties that decide whether AF_XDP can carry packets of a network device.
type Device struct {
	Name   string
	Driver string // or its kind, if it has no driver
	MTU    int    // bytes
	// Known: Capabilities are valid, because the kernel reports them (Linux 6.3).
	Known        bool
	Capabilities Capabilities
}

// bonding is a driver that reports support of XDP programs, and runs them on its slaves. Redirects
// to an AF_XDP socket then fail. The socket is bound to a queue of the bond, and the frame comes
// from a queue of the slave.
const bonding = "bonding"

// Obstacle returns why AF_XDP cannot be used, for people; "" if it can.
func (d *Device) Obstacle() string {
	switch {
	case d.Driver == bonding:
		return d.Name + " is a bond, and its slaves have the queues"
	case d.Known && !d.Capabilities.Native:
		return fmt.Sprintf("the driver of %s (%s) does not support native XDP", d.Name, d.Driver)
	case FrameSizeFor(d.MTU) == 0:
		return fmt.Sprintf("packets of %d bytes (the MTU of %s) do not fit into an AF_XDP frame", d.MTU, d.Name)
	}
	return ""
}

// ethernetHeader is the length of an Ethernet header with one VLAN tag.
const ethernetHeader = 18

// FrameSizeFor returns the smallest frame size in bytes for packets of an MTU, or 0 if none is large enough.
func FrameSizeFor(mtu int) int {
	for _, size := range []int{2048, 4096} {
		if mtu+ethernetHeader <= size-RxHeadroom {
			return size
		}
	}
	return 0
}
