// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"errors"
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
)

// Reason is why the datagrams for a target go by the UDP socket.
type Reason uint8

// The reasons.
const (
	// ViaXDP: they do not.
	ViaXDP Reason = iota
	// Unresolved: nobody has looked yet.
	Unresolved
	// NoRoute: there is none, or none to another host: the destination is this one, a broadcast or multicast address.
	NoRoute
	// OtherDevice: the route leads to another device than the port's: one stacked upon it (bond, bridge), or a tunnel.
	OtherDevice
	// OddRoute: the route does what is the kernel's alone, encapsulation above all.
	OddRoute
	// OddRules: routing follows ports, protocol or user (ip rule), for which the kernel is not asked here.
	OddRules
	// NoSource: the local address to send from is not this host's, or routing names none.
	NoSource
	// NoNeighbour: the next hop's link-layer address is not known.
	NoNeighbour
	// Failed: the kernel could not be asked.
	Failed

	reasons = iota
)

// String is the reason's stable name, as used in metric labels.
func (r Reason) String() string {
	return [...]string{
		"express", "unresolved", "no_route", "other_device", "odd_route", "odd_rules", "no_source", "no_neighbour", "failed", "unknown",
	}[min(r, reasons)]
}

// errNoSockets is why lanes have no socket with Way.NoSockets: nothing is wrong.
var errNoSockets = errors.New("no AF_XDP socket is wanted")

// Status is how a Port is.
type Status struct {
	// Attached is that the XDP program is in front of the device.
	Attached bool
	// Err is why the program is not attached, or nil.
	Err error
	// Lanes has an element for each lane.
	Lanes []LaneStatus
	// Targets counts the addresses sent to of late, by how their datagrams leave.
	Targets [reasons]int
}

// Ready is how many lanes have a working AF_XDP socket.
func (s *Status) Ready() (n int) {
	for i := range s.Lanes {
		if s.Lanes[i].Err == nil {
			n++
		}
	}
	return n
}

// trouble is why the device, or the first lane without an AF_XDP socket, is not in use.
func (s *Status) trouble() error {
	if s.Err != nil {
		return s.Err
	}
	for i := range s.Lanes {
		if err := s.Lanes[i].Err; err != nil && !errors.Is(err, errNoSockets) {
			return fmt.Errorf("lane %d: %w", i, err)
		}
	}
	return nil
}

// Why says to people what keeps datagrams from AF_XDP: of the device, the first lane without a socket, or the way to those that are
// sent to. It is empty when nothing does.
func (s *Status) Why() string {
	if s.Err != nil {
		return s.Err.Error()
	}
	for i := range s.Lanes {
		if err := s.Lanes[i].Err; err != nil && !errors.Is(err, errNoSockets) {
			return fmt.Sprintf("%d of %d lanes have no AF_XDP socket: lane %d: %v", len(s.Lanes)-s.Ready(), len(s.Lanes), i, err)
		}
	}
	for r := NoRoute; r < reasons; r++ {
		if n := s.Targets[r]; n > 0 {
			return fmt.Sprintf("to %d of the addresses sent to, the kernel sends: %s", n, r.explain())
		}
	}
	return ""
}

// explain is the reason in a few words for people.
func (r Reason) explain() string {
	return [...]string{
		ViaXDP: "nothing is in the way", Unresolved: "the way is not known yet", NoRoute: "there is no route to another host",
		OtherDevice: "the route leads to another device", OddRoute: "the route encapsulates",
		OddRules:    "routing rules ask for ports, protocol or user",
		NoSource:    "the source address is not this host's",
		NoNeighbour: "the next hop's link-layer address is not known", Failed: "the kernel could not be asked",
		reasons: "unknown",
	}[min(r, reasons)]
}

// LaneStatus is how a lane is. Counters run since the Port was opened.
type LaneStatus struct {
	// Err is why the lane has no working AF_XDP socket, so that the UDP socket carries everything; nil if it has one. Test for the
	// errors of package xsk.
	Err error
	// Features are those of the AF_XDP socket.
	Features xsk.Features
	// Fallbacks counts how often a working socket was lost, for good or until the device was up again.
	Fallbacks uint64
	// Received and Sent count datagrams that came and went by AF_XDP.
	Received, Sent uint64
	// Slow counts runs that left by the UDP socket, of those Long because they were too long for the way: those never come back to
	// AF_XDP before something about it changes, for the sake of order.
	Slow, Long uint64
	// Malformed counts frames that were dropped because no datagram for the port was in them.
	Malformed uint64
	// Lost counts datagrams that were dropped since the device did not take them in time, or went away with them.
	Lost uint64
	// Socket are the counters of the lane's AF_XDP socket, of those before it too.
	Socket xsk.Stats
	// Frames is where those of the lane's AF_XDP socket are. While the lane is at work, some may be missing or counted twice.
	Frames xsk.Frames
}

// Balanced reports whether the books of the lane's AF_XDP sockets are in order: no frame was refused, or named by who did not have
// it, and, when nothing is received or sent, all are back.
func (s *LaneStatus) Balanced() bool {
	return s.Socket.Rejected+s.Socket.Misowned+s.Socket.RxInvalid+s.Socket.TxInvalid == 0 && s.Frames.Idle()
}
