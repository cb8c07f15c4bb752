// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// facts are the input of the choice between UDP sockets and AF_XDP, for one device.
type facts struct {
	device    string // the configured device, or the one that reaches most peers; empty: none
	deviceErr error  // why there is no device
	peers     int    // number of peers' addresses
	reachable int    // of those, the number reached through the device
	inUse     bool   // AF_XDP uses the device now
	driver    string
	mtu       int  // bytes
	known     bool // caps is valid: the kernel reports the driver's capabilities (Linux 6.3)
	caps      xsk.Capabilities
}

// choice is the result of a mode, for a device.
type choice struct {
	xdp    bool
	mode   xsk.Mode
	reason string // for people, for each choice
}

const asConfigured = "as configured"

// bonding is a driver that reports support of XDP programs, and runs them on its slaves. Redirects to an AF_XDP socket
// then fail: the socket is bound to a queue of the bond, and the frame comes from a queue of the slave.
const bonding = "bonding"

// ethernetHeader is the length of an Ethernet header with one VLAN tag.
const ethernetHeader = 18

// frameSize returns the smallest frame size in bytes for packets of an MTU, or 0 if none is large enough.
func frameSize(mtu int) int {
	for _, size := range []int{2048, 4096} {
		if mtu+ethernetHeader <= size-xsk.RxHeadroom {
			return size
		}
	}
	return 0
}

// reachesEnoughPeers reports whether AF_XDP on the device pays off: half of the peers to begin, and a quarter to
// continue. The hysteresis keeps single peers that come and go from changing the path each time.
func (f *facts) reachesEnoughPeers() bool {
	if f.inUse {
		return 4*f.reachable >= f.peers
	}
	return 2*f.reachable >= f.peers
}

// choose returns the path of data messages. UDP sockets carry trains: one system call and one pass through the stack
// for up to 64 KiB. AF_XDP carries frames. It is faster only where a frame is cheap, that is, where the device itself
// reads and writes the frames (docs/performance.md). So auto requires zero-copy; mode xdp also permits copies.
func choose(mode config.UnderlayMode, f *facts) choice {
	switch {
	case mode == config.UnderlayUDP:
		return choice{reason: asConfigured}
	case f.device == "":
		return choice{reason: fmt.Sprintf("no device for AF_XDP: %v", f.deviceErr)}
	case f.driver == bonding:
		return choice{reason: fmt.Sprintf("%s is a bond, and its slaves have the queues", f.device)}
	case f.known && !f.caps.Native:
		return choice{reason: fmt.Sprintf("the driver of %s (%s) does not support native XDP", f.device, f.driver)}
	case frameSize(f.mtu) == 0:
		return choice{reason: fmt.Sprintf("packets of %d bytes (the MTU of %s) do not fit into an AF_XDP frame", f.mtu, f.device)}
	case mode == config.UnderlayXDP && f.known && !f.caps.ZeroCopy:
		return choice{true, xsk.Copy, asConfigured}
	case mode == config.UnderlayXDP:
		return choice{true, xsk.Auto, asConfigured}
	case !f.known:
		return choice{reason: fmt.Sprintf("this kernel does not report whether the driver of %s (%s) supports zero-copy", f.device, f.driver)}
	case !f.caps.ZeroCopy:
		return choice{reason: fmt.Sprintf("the driver of %s (%s) does not support zero-copy, and UDP sockets are faster than AF_XDP with copies",
			f.device, f.driver)}
	case !f.reachesEnoughPeers():
		return choice{reason: fmt.Sprintf("%d of %d peers are not reached through %s", f.peers-f.reachable, f.peers, f.device)}
	}
	return choice{true, xsk.ZeroCopy, fmt.Sprintf("the driver of %s (%s) has zero-copy", f.device, f.driver)}
}
