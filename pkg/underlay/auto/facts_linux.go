// SPDX-License-Identifier: Apache-2.0

package auto

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/xsk"
)

var (
	errNoPeers  = errors.New("no peer's address is known yet")
	errNoRoutes = errors.New("no peer is reached by a device")
)

// question is what facts are gathered for.
type question struct {
	device string       // that was asked for, if any
	now    string       // the device in use, if any
	peers  []netip.Addr // where peers are
	mark   uint32       // of what is sent to them
}

// gather finds the device that most peers are reached by, unless one was asked for, and what it can do. It works in the network
// namespace of the calling thread.
func gather(q *question) facts {
	f := facts{peers: len(q.peers)}
	links := map[int]hostnet.Link{}
	count := map[int]int{}
	for _, p := range q.peers {
		l, err := hostnet.Towards(p, q.mark)
		if _, seen := links[l.Index]; err != nil || !seen && isLoopback(l.Index) {
			continue // a peer on this host needs no device
		}
		links[l.Index] = l
		count[l.Index]++
	}
	var l hostnet.Link
	switch {
	case q.device != "":
		if l, f.noDevice = hostnet.FindLink(q.device); f.noDevice != nil {
			return f
		}
	case len(q.peers) == 0:
		f.noDevice = errNoPeers
		return f
	case len(links) == 0:
		f.noDevice = errNoRoutes
		return f
	default:
		l = most(slices.Collect(maps.Values(links)), count, q.now)
	}
	f.device, f.mtu, f.here, f.inUse = l.Name, l.MTU, count[l.Index], l.Name == q.now
	f.ask(l)
	return f
}

func isLoopback(index int) bool {
	i, err := net.InterfaceByIndex(index)
	return err == nil && i.Flags&net.FlagLoopback != 0
}

// most returns the link with the highest count, by its index. The one in use stays until another has twice as many: each change
// costs what is under way, and some drivers a reset of the device, which roaming peers could have happen all the time.
func most(links []hostnet.Link, count map[int]int, now string) hostnet.Link {
	best := slices.MinFunc(links, func(a, b hostnet.Link) int {
		return cmp.Or(cmp.Compare(count[b.Index], count[a.Index]), cmp.Compare(a.Index, b.Index))
	})
	for _, l := range links {
		if l.Name == now && 2*count[l.Index] > count[best.Index] {
			return l
		}
	}
	return best
}

// ask fills in what the device can do.
func (f *facts) ask(l hostnet.Link) {
	var err error
	if f.driver, err = hostnet.Driver(l.Name); err != nil {
		f.driver = l.Kind
	}
	f.caps, err = xsk.Probe(l.Index)
	f.known = err == nil
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		f.device, f.noDevice = "", fmt.Errorf("asking what %s can do: %w", l.Name, err)
	}
}
