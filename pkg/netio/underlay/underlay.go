// SPDX-License-Identifier: Apache-2.0

// Package underlay defines how outer datagrams enter and leave: one Port per interface, one Lane per worker. It holds
// the contract, the in-memory fake (Pipe) and the contract test that every implementation passes; the implementations
// are its subpackages.
package underlay

import (
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// MaxDatagramRun is the largest number of payload bytes of one Run: what one UDP GSO send can carry over IPv4
// (65,535 less 20 bytes of IP header and 8 of UDP header).
const MaxDatagramRun = 65507

// MaxRunSegments is the largest number of datagrams in one Run (UDP_MAX_SEGMENTS of Linux before 6.11).
const MaxRunSegments = 64

// MaxCoalesced is the largest number of datagrams that UDP_GRO coalesces (UDP_GRO_CNT_MAX), and so whoever else does. The engine has
// nobody open longer elements ahead of their lane.
const MaxCoalesced = 64

// MaxSources is the largest number of sources of one Port, the canonical port not counted.
const MaxSources = 255

// Endpoint says where a peer is and which of our addresses it knows us by. It is comparable.
type Endpoint struct {
	// Dst is the peer's address and UDP port; never 4-in-6, never with a zone.
	Dst netip.AddrPort
	// Scope is the interface index of a link-local IPv6 Dst, else 0.
	Scope uint32
	// Src is the local address on which the peer last reached us, so that answers leave from it; the zero Addr
	// leaves the choice to routing.
	Src netip.Addr
}

// Datagrams is one element received: a datagram, or a run of equal-size ones that the kernel coalesced (UDP_GRO).
type Datagrams struct {
	// Buf is owned by the caller of Recv and is where the payload goes; its length must be at least 65,535.
	Buf []byte
	// N is the number of payload bytes in Buf.
	N int
	// SegSize is the size of each datagram in Buf but the last, which may be shorter; it equals N for a single one.
	SegSize int
	// From is the sender; From.Src is the local address it sent to.
	From Endpoint
	// ECN is that of the outer headers; datagrams of different ECN never share an element.
	ECN packet.ECN
	// Truncated is set when the datagram did not fit in Buf.
	Truncated bool
}

// Run is one element to send: datagrams of equal size (the last may be shorter) for one endpoint, back to back.
type Run struct {
	// To must not be nil.
	To *Endpoint
	// Parts hold the payload, at most MaxRunSegments of them. A datagram may not straddle two parts.
	Parts [][]byte
	// SegSize is the size of each datagram but the last; of a single datagram it is ignored.
	SegSize int
	// Segments is the number of datagrams, at most MaxRunSegments.
	Segments int
	// Source is which of the Port's sources the run leaves from: 0 is the canonical port, any other is what OpenSource
	// returned.
	Source int
	// ECN is that of all the run's outer headers. Their DSCP is always 0: it would show what is inside.
	ECN packet.ECN
	// Err is set by Send: nil when the run was handed to the network. Test for ErrTooBig and ErrBadRun with errors.Is;
	// anything else is the operating system's error.
	Err error
}

// Receiver is a way in.
type Receiver interface {
	// Recv blocks until something has arrived, fills at most len(rx) elements without blocking again, and returns how
	// many. It returns net.ErrClosed once the Port is closed; any other error is transient.
	Recv(rx []Datagrams) (int, error)
}

// Lane is one worker's way in and out. One goroutine may call Recv while another calls Send; neither method may be
// called by two goroutines at once. Neither allocates.
type Lane interface {
	Receiver
	// TryRecv is Recv for the same goroutine, without waiting: it returns 0 when nothing is there. Errors are left to the next
	// Recv.
	TryRecv(rx []Datagrams) int
	// Send sends the runs of each source in order, with backpressure from the kernel's send buffers. Runs of one source
	// that stand together cost the fewest system calls. It returns how many runs failed and sets Err on those (some of
	// their datagrams may have left); one failed run does not keep the others from being sent. After Close it fails all
	// with net.ErrClosed.
	Send(runs []Run) (failed int)
}

// Port is one bound UDP port, shared by all lanes. It may be a Selector too.
type Port interface {
	// Lane returns lane i, 0 <= i < Lanes().
	Lane(i int) Lane
	// Lanes is the number of lanes the Port was opened with.
	Lanes() int
	// LocalPort is the UDP port in use, on all lanes: the canonical port.
	LocalPort() uint16
	// OpenSource binds another UDP port to send from, for all lanes, until Close, and returns its number for Run.Source:
	// 1 for the first. A port that is open already keeps its number. Errors: syscall.EADDRINUSE when the port is the
	// canonical one or somebody else's, syscall.EINVAL for port 0, syscall.EMFILE when the process would have too few
	// descriptors left, net.ErrClosed, or that there are MaxSources.
	//
	// A peer should send to the canonical port alone. What a peer that does not know better sends to a source comes from
	// Strays.
	OpenSource(port uint16) (source int, err error)
	// Strays is where what was sent to any source arrives. One goroutine at a time may use it.
	SecondaryPorts() Receiver
	// Source returns the UDP port of a source, LocalPort for 0, and 0 for one that is not open.
	Source(source int) uint16
	// SendTo sends one datagram, for handshakes, cookies and keepalives, with ECN zero. It may be called by any goroutine.
	SendTo(to *Endpoint, datagram []byte) error
	// SendRun sends one run away from the lanes, and returns what Lane.Send would set as its Err. It may be called by any
	// goroutine; runs of one caller leave in order.
	SendRun(r *Run) error
	// SetMark sets SO_MARK on all that is sent from now on, from every source; 0 removes it.
	SetMark(mark uint32) error
	// Features says what the port found it can do, and has not had revoked.
	Features() Features
	// Close wakes all that block in Recv. It returns after the sockets are closed.
	Close() error
}

// Features are the capabilities of a Port, probed when it was opened.
type Features struct {
	GSO  bool // UDP_SEGMENT: one send carries a run
	GRO  bool // UDP_GRO: one receive carries a run
	IPv4 bool
	IPv6 bool
	// Select: a Selection is in force (Selector).
	Select bool
	// Filter: trains of handshake initiations, which only a flood has, are refused before they take room.
	Filter bool
}
