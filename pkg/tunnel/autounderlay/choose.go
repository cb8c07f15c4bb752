// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay/measurement"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// facts are the input of the choice between UDP sockets and AF_XDP, for one device.
type facts struct {
	device    string // the configured device, or the one that reaches most peers; empty: none
	deviceErr error  // why there is no device
	driver    string
	mtu       int  // bytes
	known     bool // caps is valid: the kernel reports the driver's capabilities (Linux 6.3)
	caps      xsk.Capabilities
	// measured is the valid measurement of the device. Otherwise measuredErr is the reason why there is none.
	measured    measurement.Result
	measuredErr error
}

// choice is the result of a mode, for a device.
type choice struct {
	xdp    bool
	mode   xsk.Mode
	device string
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

// choose returns the path of data messages. UDP sockets carry trains: one system call and one pass through the stack
// for up to 64 KiB. AF_XDP carries frames. Which is faster depends on the device and its driver, so auto requires a
// measurement of the device. Mode xdp does not.
func choose(mode config.UnderlayMode, f *facts) choice {
	no := func(format string, args ...any) choice {
		return choice{device: f.device, reason: fmt.Sprintf(format, args...)}
	}
	yes := func(mode xsk.Mode, reason string) choice { return choice{true, mode, f.device, reason} }
	switch {
	case mode == config.UnderlayUDP:
		return no(asConfigured)
	case f.device == "":
		return no("no device for AF_XDP: %v", f.deviceErr)
	case f.driver == bonding:
		return no("%s is a bond, and its slaves have the queues", f.device)
	case f.known && !f.caps.Native:
		return no("the driver of %s (%s) does not support native XDP", f.device, f.driver)
	case frameSize(f.mtu) == 0:
		return no("packets of %d bytes (the MTU of %s) do not fit into an AF_XDP frame", f.mtu, f.device)
	case mode == config.UnderlayXDP && f.known && !f.caps.ZeroCopy:
		return yes(xsk.Copy, asConfigured)
	case mode == config.UnderlayXDP:
		return yes(xsk.Auto, asConfigured)
	case f.measuredErr != nil:
		return no("%v", f.measuredErr)
	case !f.measured.Better():
		return no("%v", &f.measured)
	case f.measured.Mode == measurement.ZeroCopy:
		return yes(xsk.ZeroCopy, f.measured.String())
	}
	return yes(xsk.Copy, f.measured.String())
}
