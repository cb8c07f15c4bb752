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
	device    xsk.Device // the configured device, or the device that reaches most peers; no name: none
	deviceErr error      // why there is no device
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

// choose returns the path of data messages. UDP sockets carry trains: one system call and one pass through the stack
// for up to 64 KiB. AF_XDP carries frames. Which is faster depends on the device and its driver, so auto requires a
// measurement of the device. Mode xdp does not.
func choose(mode config.UnderlayMode, f *facts) choice {
	no := func(format string, args ...any) choice {
		return choice{device: f.device.Name, reason: fmt.Sprintf(format, args...)}
	}
	yes := func(mode xsk.Mode, reason string) choice { return choice{true, mode, f.device.Name, reason} }
	switch {
	case mode == config.UnderlayUDP:
		return no(asConfigured)
	case f.device.Name == "":
		return no("no device for AF_XDP: %v", f.deviceErr)
	case f.device.Obstacle() != "":
		return no("%s", f.device.Obstacle())
	case mode == config.UnderlayXDP && f.device.Known && !f.device.Capabilities.ZeroCopy:
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
