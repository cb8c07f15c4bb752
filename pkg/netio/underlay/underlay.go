// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// MaxDatagramRun is the maximum number of payload bytes of one Run. It is the limit of one UDP GSO
// send over IPv4 (65,535 less 20 bytes of IP header and 8 of UDP header).
const MaxDatagramRun = 65507

// MaxRunSegments is the maximum number of datagrams in one Run (UDP_MAX_SEGMENTS of Linux before 6.11).
const MaxRunSegments = 64

// MaxCoalesced is the maximum number of datagrams in a received element (UDP_GRO_CNT_MAX), for every Port. The engine
// does not open longer elements ahead of their lane.
const MaxCoalesced = 64

// MaxSources is the maximum number of sources of one Port, not counting the listen port.
const MaxSources = 255

// MaxGroups is the maximum number of send groups, including group 0, which is always open.
const MaxGroups = 8

// Endpoint is a peer's address together with the local address that it knows. It is comparable.
type Endpoint struct {
	// Dst is the peer's address and UDP port; never 4-in-6, never with a zone.
	Dst netip.AddrPort
	// Scope is the interface index of a link-local IPv6 Dst, else 0.
	Scope uint32
	// Src is the local address on which the peer last reached us, so that answers leave from it. With the zero Addr,
	// routing chooses it.
	Src netip.Addr
}

// Datagrams is one received element: a datagram, or a train of datagrams of equal size that the kernel coalesced
// (UDP_GRO).
type Datagrams struct {
	// Buf receives the payload. The caller of Recv owns it, and its length must be at least 65,535.
	Buf []byte
	// N is the number of payload bytes in Buf.
	N int
	// SegSize is the size of each datagram in Buf but the last, which may be shorter. For a single datagram it equals
	// N.
	SegSize int
	// From is the sender. From.Src is the local address that it sent to.
	From Endpoint
	// ECN is the ECN field of the outer headers. Datagrams of different ECN never share an element.
	ECN packet.ECN
	// Truncated is set if the datagram did not fit in Buf.
	Truncated bool
}

// Run is one element to send: consecutive datagrams of equal size (the last may be shorter) for one endpoint.
type Run struct {
	// To must not be nil.
	To *Endpoint
	// Parts hold the payload, in at most MaxRunSegments parts. No datagram may span two parts.
	Parts [][]byte
	// SegSize is the size of each datagram but the last. It is ignored for a single datagram.
	SegSize int
	// Segments is the number of datagrams, at most MaxRunSegments.
	Segments int
	// Source is the number of the source from which the run leaves: 0 is the listen port; OpenSource returns the
	// others.
	Source int
	// Group is the number of the send group, 0 <= Group < MaxGroups. Runs of one source in
	// different groups have different send buffers if OpenGroup has opened the groups. The wire
	// does not show the group.
	Group int
	// Peer is the number of the peer to which the run goes; 0 for unknown. With it, one peer at
	// many endpoints takes no others' share of a table.
	Peer uint16
	// DontFragment sends each datagram of the run in one packet that neither this host nor a router fragments, whatever path
	// MTU the host has learned. It is for probes of the path, and only SendRun accepts it. Err is ErrTooBig if the network
	// device cannot carry the datagram.
	DontFragment bool
	// MayFragment lets this host and routers fragment the run's datagrams, whatever SetFragments says. It is for packets that must
	// also pass on a path that is too small for them.
	MayFragment bool
	// ECN is the ECN field of all the run's outer headers. Their DSCP is always 0, because it would reveal information
	// about the inner packets.
	ECN packet.ECN
	// Err is set by Send: nil when the run was passed to the network. Test for ErrTooBig, ErrSendBufferFull
	// and ErrBadRun with errors.Is.
	// All other errors are the operating system's.
	Err error
	// Sent is set by Send if Err is ErrSendBufferFull: the number of datagrams, from the first, that were passed to
	// the network nevertheless.
	Sent int
}

// Receiver receives datagrams.
type Receiver interface {
	// Recv blocks until something has arrived, fills at most len(rx) elements without blocking again, and returns their
	// number. It returns net.ErrClosed once the Port is closed. Any other error is transient.
	Recv(rx []Datagrams) (int, error)
}

// Lane sends and receives for one lane of the engine. One goroutine may receive (Recv, TryRecv) while another calls Send. Two goroutines must
// not receive, or send, at once, but they may take turns if something orders their calls: a worker receives for its lane. No method allocates.
type Lane interface {
	Receiver
	// TryRecv is Recv without waiting: it returns 0 if nothing is queued. The next Recv returns its errors.
	TryRecv(rx []Datagrams) int
	// Send sends the runs of each source and group in order. Adjacent runs of one source and group
	// need the fewest system calls. It returns the number of failed runs, and sets their Err; some
	// of their datagrams may have left. A failed run does not keep the others from being sent.
	// Send does not wait for room in a send buffer. A run for which there is none fails with
	// ErrSendBufferFull, as do all later runs of its source and group in the same call. After
	// Close all runs fail with net.ErrClosed.
	Send(runs []Run) (failed int)
	// SendFD returns a descriptor that becomes writable (POLLOUT) when the send buffer that had no
	// room for r has some again. It returns -1 if there is none to wait for. It is valid between
	// BeginWait and EndWait.
	SendFD(r *Run) int
	// BeginWait keeps the descriptors of SendFD open until EndWait, for the goroutine that calls Send. It returns false once
	// the Port is closed. Close makes them writable, and waits for EndWait.
	BeginWait() bool
	// EndWait ends what BeginWait began.
	EndWait()
}

// Port is one bound UDP port, shared by all lanes. It may also be a Selector, or a TrainLimiter.
type Port interface {
	// Lane returns lane i, 0 <= i < Lanes().
	Lane(i int) Lane
	// Lanes returns the number of lanes with which the Port was opened.
	Lanes() int
	// LocalPort returns the UDP port of all lanes: the listen port.
	LocalPort() uint16
	// OpenSource binds another UDP port to send from, for all lanes, until Close. It returns its
	// number for Run.Source: 1 for the first. A port that is open already keeps its number. Errors
	// are syscall.EADDRINUSE if the port is the listen port or another program's, and
	// syscall.EINVAL for port 0. If the process would have too few descriptors left, the error is
	// syscall.EMFILE. Other errors are net.ErrClosed, and an error if MaxSources are open.
	//
	// Peers should send to the listen port only. Datagrams that a peer sends to a source are received from
	// SecondaryPorts.
	OpenSource(port uint16) (source int, err error)
	// OpenGroup opens a send group, 0 < group < MaxGroups, until Close. It opens the group for all
	// sources, also for sources that are opened later. To open it again has no effect. Runs of
	// groups that are not open use group 0. Errors are as in OpenSource.
	OpenGroup(group int) error
	// SecondaryPorts receives the datagrams that were sent to any source. One goroutine at a time may use it.
	SecondaryPorts() Receiver
	// Source returns the UDP port of a source: LocalPort for 0, and 0 if it is not open.
	Source(source int) uint16
	// SendTo sends one handshake initiation or response, with the DSCP AF41 and ECN zero. Any goroutine may call it. It
	// does not wait for room in a send buffer: the error is ErrSendBufferFull then.
	SendTo(to *Endpoint, datagram []byte) error
	// SendRun sends one run without a lane, and sets its Sent. It returns the error that Lane.Send
	// would set as its Err, or ErrSendBufferFull: it does not wait. Any goroutine may call it.
	// Runs of one caller leave in order.
	SendRun(r *Run) error
	// SetMark sets SO_MARK for everything that is sent from now on, from every source; 0 removes it.
	SetMark(mark uint32) error
	// SetFragments permits this host and routers to fragment all datagrams that are sent from now
	// on, or forbids it, from every source. Forbidden, they leave with Don't Fragment, whatever
	// path MTU the host has learned: Err is ErrTooBig only for datagrams that the network device
	// cannot carry. Features says the effect: fragments stay permitted if nothing would report
	// that a datagram was too big for a router.
	SetFragments(permitted bool) error
	// SetLoop makes runs and messages to an address, whatever their port, fail with ErrLoop, or ends that. Call it when the route to the
	// address leads into the tunnel itself.
	SetLoop(to Destination, loops bool)
	// RoutesChanged discards the sizes that the host has refused. Call it when the host's routes or links changed.
	RoutesChanged()
	// Features returns the capabilities that were found at Open, as far as the kernel has not refused them since.
	Features() Features
	// Close wakes all callers that block in Recv. It returns after the sockets are closed.
	Close() error
}

// Features are the capabilities of a Port, probed at Open.
type Features struct {
	GSO bool // UDP_SEGMENT: one send carries a run
	// DestinationsWithoutGSO is the number of destination addresses to which the kernel has
	// refused UDP_SEGMENT lately. Their devices cannot compute checksums, or their packets go
	// through IPsec. Runs to them are sent as single datagrams. When there are too many to
	// remember, GSO is false.
	DestinationsWithoutGSO int `json:"destinations_without_gso"`
	// DestinationsLosingTrains is the number of destination addresses to which trains get lost although single datagrams
	// arrive (TrainLimiter). Runs to them are sent as single datagrams.
	DestinationsLosingTrains int  `json:"destinations_losing_trains"`
	GRO                      bool // UDP_GRO: one receive carries a train
	IPv4                     bool
	IPv6                     bool
	// Select: a Selection is active (Selector).
	Select bool
	// Filter: trains of handshake initiations, which only a flood produces, are dropped before the socket buffer.
	Filter bool
	// DontFragment: datagrams leave with Don't Fragment (SetFragments).
	DontFragment bool `json:"dont_fragment"`
}
