// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/fqcodel"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

// Shared is the state that all lanes of an engine share.
type Shared struct {
	Clock    Clock
	Control  Control
	Sessions *session.Table[*Session]
	Routes   peer.AllowedIPs[*Peer]
	MTU      atomic.Int64 // the TUN's; lanes read it once per batch
	Memory   trimmer
	Lanes    int           // their number, without the slow path's
	USO      bool          // the TUN takes trains of UDP datagrams
	peers    atomic.Uint32 // number of NewPeer's calls
}

// Lane is a TUN queue and the underlay lane with the same number. Its transmit and receive goroutines share only the counters.
type Lane struct {
	Shared *Shared
	Index  int
	Queue  tun.Queue
	Conn   atomic.Pointer[underlay.Lane] // nil while detached
	Stats  laneCounters
	// The flow tables of each direction, while flows are observed.
	TxFlows, RxFlows flowSlot
	// Jobs of each direction that workers may run.
	SealJobs, OpenJobs *workpool.JobRing
}

// Control takes the messages of no session from the lanes. It must not block.
type Control interface {
	// Handshake takes a handshake or cookie message. msg is valid only during the call.
	Handshake(msg []byte, from underlay.Endpoint) drop.Reason
}

// DefaultMTU is the TUN's MTU until SetMTU is called: 1500 less 80 for the largest encapsulation (IPv6).
const DefaultMTU = 1420

const (
	// MaxJobs is the maximum number of trains in the job ring of each direction.
	MaxJobs = 8
	// Quantum is the number of bytes that a lane handles of its queue before it looks for more: some 50 µs of work.
	Quantum = 64 << 10
	// FlowQuantum is the number of bytes that a flow in a queue may send per round, if its peer has no other flow.
	FlowQuantum = 16 << 10
	// ErrorPause keeps a lane from using a whole core when its TUN queue or underlay fails repeatedly.
	ErrorPause = time.Millisecond
)

// QueueParams are CoDel's defaults (RFC 8289, section 4), with the size of a datagram on most underlays.
var QueueParams = fqcodel.Params{Target: 5 * time.Millisecond, Interval: 100 * time.Millisecond, MTU: 1500}

// New returns the lane of a TUN queue, which workers of pool may help.
func New(s *Shared, index int, q tun.Queue, pool *workpool.Pool) *Lane {
	return &Lane{Shared: s, Index: index, Queue: q, SealJobs: pool.NewJobRing(MaxJobs), OpenJobs: pool.NewJobRing(MaxJobs)}
}

// NewShared returns what the given number of lanes share.
func NewShared(clock Clock, control Control, random io.Reader, lanes int, uso bool) *Shared {
	s := &Shared{Clock: clock, Control: control, Sessions: session.NewTable[*Session](random), Lanes: lanes, USO: uso}
	s.MTU.Store(DefaultMTU)
	return s
}

// laneCounters counts packets and drops. The lane's goroutines write it a few times per batch, and Stats reads it.
type laneCounters struct {
	Tx, Rx  directionCounters
	Held    progress      // of the transmit queue
	Sprayed atomic.Uint64 // packets sent in streams
	Orders  orderCounters
	TxMarks atomic.Uint64 // packets marked as congested by this host
	RxMarks atomic.Uint64
	// Control messages to send, and accepted control messages.
	TxControl, RxControl atomic.Uint64
	Drops                drop.Counters
	ICMP                 icmpCounters
}

// directionCounters counts one direction of a lane. Trains are counted at the TUN, and runs at the underlay.
type directionCounters struct {
	Packets, bytes, trains, Runs atomic.Uint64
	Sizes                        sizeCounters
	Progress                     progress
	_                            [88]byte // the two directions are written by two goroutines
}

func (d *directionCounters) Add(packets, bytes, trains, runs int) {
	if packets|trains|runs == 0 {
		return
	}
	d.Packets.Add(uint64(packets))
	d.bytes.Add(uint64(bytes))
	d.trains.Add(uint64(trains))
	d.Runs.Add(uint64(runs))
}
