// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
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

var (
	errNoPeers  = errors.New("no peer's endpoint is known yet")
	errNoRoutes = errors.New("no route to a peer leads through a device")
)

// query is the input of gatherFacts.
type query struct {
	device        string            // the configured device, if any
	currentDevice string            // the device in use, if any
	peers         []config.Endpoint // of some peers
	mark          uint32            // SO_MARK of packets to them
	measurements  string            // the directory of measurements; empty if none is needed
}

// gatherFacts finds the device that reaches most peers, unless one is configured, and its capabilities. It uses the
// network namespace of the calling thread.
func gatherFacts(q *query) facts {
	l, err := findDevice(q)
	if err != nil {
		return facts{deviceErr: err}
	}
	f := facts{device: xsk.Device{Name: l.Name, MTU: l.MTU}}
	if f.device.Driver, err = hostnet.Driver(l.Name); err != nil {
		f.device.Driver = l.Kind
	}
	f.device.Capabilities, err = xsk.Probe(l.Index)
	f.device.Known = err == nil
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		f.device.Name, f.deviceErr = "", fmt.Errorf("reading the capabilities of %s: %w", l.Name, err)
	}
	if q.measurements != "" {
		f.measured, f.measuredErr = measurement.Load(q.measurements, l.Name)
	}
	return f
}

func findDevice(q *query) (hostnet.Link, error) {
	if q.device != "" {
		return hostnet.FindLink(q.device)
	}
	if len(q.peers) == 0 {
		return hostnet.Link{}, errNoPeers
	}
	count := map[hostnet.Link]int{}
	for _, p := range q.peers {
		if l, err := hostnet.EgressDevice(p.AddrPort.Addr(), p.Scope, q.mark); err == nil {
			count[l]++
		}
	}
	maps.DeleteFunc(count, func(l hostnet.Link, _ int) bool { // a peer on this host needs no device
		i, err := net.InterfaceByIndex(l.Index)
		return err == nil && i.Flags&net.FlagLoopback != 0
	})
	if len(count) == 0 {
		return hostnet.Link{}, errNoRoutes
	}
	return busiestLink(count, q.currentDevice), nil
}

// busiestLink returns the link with the highest count; a tie goes to the lower index. The link in use stays until
// another has twice as many. Each change loses packets in flight, and with some drivers resets the device. Without the
// margin, roaming peers could cause changes all the time.
func busiestLink(count map[hostnet.Link]int, current string) hostnet.Link {
	links := slices.Collect(maps.Keys(count))
	best := slices.MinFunc(links, func(a, b hostnet.Link) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a.Index, b.Index))
	})
	for _, l := range links {
		if l.Name == current && 2*count[l] > count[best] {
			return l
		}
	}
	return best
}
