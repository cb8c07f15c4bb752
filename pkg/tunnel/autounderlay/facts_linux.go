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
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
)

var (
	errNoPeers  = errors.New("no peer's endpoint is known yet")
	errNoRoutes = errors.New("no route to a peer leads through a device")
)

// query is the input of gatherFacts.
type query struct {
	device        string     // the configured device, if any
	currentDevice string     // the device in use, if any
	peers         []peerAddr // the peers' addresses
	mark          uint32     // SO_MARK of packets to them
}

// gatherFacts finds the device that reaches most peers, unless one is configured, and its capabilities. It uses the
// network namespace of the calling thread.
func gatherFacts(q *query) facts {
	f := facts{peers: len(q.peers)}
	links := map[int]hostnet.Link{}
	count := map[int]int{}
	for _, p := range q.peers {
		l, err := hostnet.EgressDevice(p.Addr, p.scope, q.mark)
		if _, seen := links[l.Index]; err != nil || !seen && isLoopback(l.Index) {
			continue // a peer on this host needs no device
		}
		links[l.Index] = l
		count[l.Index]++
	}
	var l hostnet.Link
	switch {
	case q.device != "":
		if l, f.deviceErr = hostnet.FindLink(q.device); f.deviceErr != nil {
			return f
		}
	case len(q.peers) == 0:
		f.deviceErr = errNoPeers
		return f
	case len(links) == 0:
		f.deviceErr = errNoRoutes
		return f
	default:
		l = busiestLink(slices.Collect(maps.Values(links)), count, q.currentDevice)
	}
	f.device, f.mtu, f.reachable, f.inUse = l.Name, l.MTU, count[l.Index], l.Name == q.currentDevice
	f.probeDevice(l)
	return f
}

func isLoopback(index int) bool {
	i, err := net.InterfaceByIndex(index)
	return err == nil && i.Flags&net.FlagLoopback != 0
}

// busiestLink returns the link with the highest count; a tie goes to the lower index. The link in use stays until
// another has twice as many. Each change loses packets in flight, and with some drivers resets the device. Without the
// margin, roaming peers could cause changes all the time.
func busiestLink(links []hostnet.Link, count map[int]int, current string) hostnet.Link {
	best := slices.MinFunc(links, func(a, b hostnet.Link) int {
		return cmp.Or(cmp.Compare(count[b.Index], count[a.Index]), cmp.Compare(a.Index, b.Index))
	})
	for _, l := range links {
		if l.Name == current && 2*count[l.Index] > count[best.Index] {
			return l
		}
	}
	return best
}

// probeDevice fills in the device's capabilities.
func (f *facts) probeDevice(l hostnet.Link) {
	var err error
	if f.driver, err = hostnet.Driver(l.Name); err != nil {
		f.driver = l.Kind
	}
	f.caps, err = xsk.Probe(l.Index)
	f.known = err == nil
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		f.device, f.deviceErr = "", fmt.Errorf("reading the capabilities of %s: %w", l.Name, err)
	}
}
