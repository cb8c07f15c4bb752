// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

var (
	errNoPeers  = errors.New("no peer's address is known yet")
	errNoRoutes = errors.New("no peer is reached by a device")
)

// query is what facts are gathered for.
type query struct {
	device string       // that was asked for, if any
	now    string       // the device in use, if any
	peers  []netip.Addr // where peers are
	mark   uint32       // of what is sent to them
	cpus   bool         // over which processors receiving may be spread is asked too
}

// gather finds the device that most peers are reached by, unless one was asked for, and what it can do. It works in the network
// namespace of the calling thread.
func gather(q *query) facts {
	f := facts{peers: len(q.peers)}
	links := map[int]hostnet.Link{}
	count := map[int]int{}
	via := map[int][]netip.Addr{}
	for _, p := range q.peers {
		l, err := hostnet.EgressDevice(p, q.mark)
		if _, seen := links[l.Index]; err != nil || !seen && isLoopback(l.Index) {
			continue // a peer on this host needs no device
		}
		links[l.Index] = l
		count[l.Index]++
		via[l.Index] = append(via[l.Index], p)
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
	if q.cpus && f.device != "" {
		f.askCPUs(l, via[l.Index])
	}
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

// askCPUs fills in what spreading over processors has to do with, for messages from those peers.
func (f *facts) askCPUs(l hostnet.Link, peers []netip.Addr) {
	if c, err := hostnet.ReadChannels(l.Name); err == nil {
		f.hashed = c.RX + c.Combined
	}
	if rss, err := hostnet.ReadRSS(l.Name); err == nil && !byPort(&rss.RSS, peers, f.inUse) {
		f.hashed = 1
	}
	if offloads, err := hostnet.ReadFeatures(l.Name); err == nil && offloads["rx-vlan-hw-parse"].On {
		f.strips, err = hostnet.HasVLANs(l.Index)
		f.strips = f.strips || err != nil
	}
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return
	}
	for cpu := range len(set) * bits.UintSize {
		if set.IsSet(cpu) {
			f.cpus = append(f.cpus, cpu)
		}
	}
}

// byPort tells whether a NIC looks at the ports of what comes from most of the peers: it may do so for one family alone. A device in
// use is left only where it does for more than three quarters, as by enough.
func byPort(rss *spread.RSS, peers []netip.Addr, inUse bool) bool {
	if len(peers) == 0 {
		return rss.UDP4 != spread.AddressesOnly
	}
	blind := 0
	for _, p := range peers {
		fields := rss.UDP6
		if p.Is4() {
			fields = rss.UDP4
		}
		if fields == spread.AddressesOnly {
			blind++
		}
	}
	if inUse {
		return 4*blind < len(peers)
	}
	return 2*blind < len(peers)
}
