// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Reason is the reason why datagrams to a target go through the UDP socket.
type Reason uint8

// Reasons.
const (
	// ViaXDP: none, they go through AF_XDP.
	ViaXDP Reason = iota
	// Unresolved: the path is not resolved yet.
	Unresolved
	// NoRoute: there is no route to another host. The destination may be unreachable, local, or a broadcast or
	// multicast address.
	NoRoute
	// OtherDevice: the route leads to another device than the port's: one stacked on top of it (bond, bridge), or a
	// tunnel.
	OtherDevice
	// UnsupportedRoute: the route needs the kernel's own processing: it encapsulates, or has several next hops of which ports choose one.
	UnsupportedRoute
	// UnsupportedRules: routing depends on ports, protocol or user (ip rule). The route lookup here does not pass them
	// to the kernel.
	UnsupportedRules
	// NoSource: the local address to send from is not this host's, or routing gives none.
	NoSource
	// NoNeighbour: the next hop's link-layer address is unknown.
	NoNeighbour
	// Failed: the query to the kernel failed.
	Failed
)

// Status is the state of a Port.
type Status struct {
	// Attached is true while the XDP program is attached to the device.
	Attached bool
	// Err is the reason why the program is not attached, or nil.
	Err error
	// Lanes has one element per lane.
	Lanes []LaneStatus
}

// Ready returns the number of lanes with a working AF_XDP socket.
func (s *Status) Ready() (n int) {
	for i := range s.Lanes {
		if s.Lanes[i].Err == nil {
			n++
		}
	}
	return n
}

// firstError returns the error of the device, or of the first lane without an AF_XDP socket.
func (s *Status) firstError() error {
	if s.Err != nil {
		return s.Err
	}
	for i := range s.Lanes {
		if err := s.Lanes[i].Err; err != nil {
			return fmt.Errorf("lane %d: %w", i, err)
		}
	}
	return nil
}

// LaneStatus is the state of a lane. Its Error is empty; Err has the reason.
type LaneStatus struct {
	config.XDPLane
	// Err is the reason why the lane has no working AF_XDP socket, or nil. With an error, the UDP socket carries
	// everything. Test for the errors of package xsk.
	Err error
	// Features are the features of the AF_XDP socket.
	Features xsk.Features
	// Unsent counts the lost datagrams whose runs Send did not report as failed.
	Unsent uint64
	// Socket holds the counters of the lane's AF_XDP sockets, present and former.
	Socket xsk.Stats
}
