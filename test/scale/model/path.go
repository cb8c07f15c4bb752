// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

const (
	listenPort = 51820
	flowsLog2  = 12 // the engine's
)

// path is one direction between the two ends, from the sender's lane to the receiver's.
type path struct {
	from, to *endpoint
	loads    *spread.Loads   // nil: all trains leave from port 0
	flows    []*spread.Flows // by transmit lane
	queueOf  []int           // by port
	laneOf   []int           // by port
	linkFree int64           // time at which the wire is free
}

// newPath selects source ports as ropewalk does, and computes the queue and lane of each. The receiver's NIC has a random key.
func newPath(c *Config, rng *rand.Rand, from, to *endpoint, n byte) (*path, error) {
	src := netip.AddrFrom4([4]byte{10, 0, 0, n})
	dst := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 3 - n}), listenPort)
	rss := &spread.RSS{Device: "nic", Key: make([]byte, 52), Indirection: spread.EqualIndirection(to.host.Queues)}
	for i := range rss.Key {
		rss.Key[i] = byte(rng.Uint32())
	}
	ports, err := ports(c, rss, src, dst)
	if err != nil {
		return nil, err
	}
	w := &path{from: from, to: to}
	secret, selection := rng.Uint64(), selection(c, src, ports)
	for _, port := range ports {
		queue, err := rss.Queue(netip.AddrPortFrom(src, port), dst)
		if err != nil {
			return nil, fmt.Errorf("placing port %d: %w", port, err)
		}
		lane, selected := selection.Lane(netip.AddrPortFrom(src, port), to.host.Lanes)
		if !selected {
			lane = int(mix64(uint64(port)^secret) >> 32 * uint64(to.host.Lanes) >> 32)
		}
		w.queueOf, w.laneOf = append(w.queueOf, queue), append(w.laneOf, lane)
	}
	if c.Spread == Off {
		return w, nil
	}
	w.loads = spread.NewLoads(len(ports), rng.Uint32())
	for range from.host.Lanes {
		w.flows = append(w.flows, spread.NewFlows(flowsLog2, spread.DefaultGap))
	}
	return w, nil
}

// ports returns the source ports that a sender uses.
func ports(c *Config, rss *spread.RSS, src netip.Addr, dst netip.AddrPort) ([]uint16, error) {
	switch c.Spread {
	case Off:
		return []uint16{listenPort}, nil
	case Planned:
		plan, err := spread.Plan(rss, src, dst, spread.DefaultPorts, 0)
		if err != nil {
			return nil, fmt.Errorf("planning the model's ports: %w", err)
		}
		return plan, nil
	}
	list := make([]uint16, spread.MaxPorts)
	for i := range list {
		list[i] = spread.DefaultPorts.First + uint16(i)
	}
	return list, nil
}

// selection returns the receiver's mapping of source ports to lanes.
func selection(c *Config, src netip.Addr, ports []uint16) (s underlay.Selection) {
	if c.LaneByHash || c.Spread == Off {
		return s
	}
	s.First, s.Last = spread.DefaultPorts.First, spread.DefaultPorts.Last
	if c.Spread == Planned {
		s.Plans = []underlay.Plan{{From: src, Ports: ports}}
	}
	return s
}

// port returns the source port of a train.
func (p *path) port(lane int, hash uint32, now int64, bytes int) int {
	if p.loads == nil {
		return 0
	}
	return p.flows[lane].Choose(p.loads, spread.Flow{Peer: 1, Hash: hash}, now, bytes)
}

// mix64 is the finalizer of splitmix64. It stands for a random hash.
func mix64(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
