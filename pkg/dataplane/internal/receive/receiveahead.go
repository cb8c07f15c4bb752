// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

// A lane with a backlog lets a worker receive the next elements while it handles its queue. Only
// one thread receives at a time, and the lane alone moves elements to its queue, so they keep the
// order of the socket. What defines the order of packets for the kernel stays on the lane's
// thread: The CPU of a thread that sends, or that writes forwarded packets to the TUN, selects
// the NIC queue for transmission (XPS; netdev_pick_tx in net/core/dev.c). Two threads in turn
// would reorder a flow.

// receiveJob is one receive call, into receiver.in.
type receiveJob struct {
	in      []underlay.Datagrams
	tryRecv func([]underlay.Datagrams) int // of the port; nil if receiving without blocking does not pay
	n       int                            // elements received
	offered bool                           // to the workers
}

// Run receives without blocking; it implements workpool.Job.
func (j *receiveJob) Run(*session.Scratch) { j.n = j.tryRecv(j.in) }

// offerReceive offers the next receive call to the workers if they may help. Nothing may refer to r.in: the lane has moved all of it to
// the queue, or written it.
func (r *Receiver) offerReceive() {
	j := &r.recv
	if j.offered || j.tryRecv == nil || !r.ahead.enabled {
		return
	}
	j.in, j.offered = r.in[:r.slots], true
	r.lane.OpenJobs.Offer(j)
}

// takeReceived ends the offer. It returns the number of elements that a worker has received, and false if the lane has to receive itself.
// While a worker still receives, it returns none, if other elements wait, and waits for the worker otherwise.
func (r *Receiver) takeReceived() (n int, ok bool) {
	j := &r.recv
	if !j.offered {
		return 0, false
	}
	outcome := r.lane.OpenJobs.Retract()
	if outcome == workpool.Running {
		if !r.idle() {
			return 0, true
		}
		outcome = r.lane.OpenJobs.AwaitOffer(&r.scratch)
	}
	j.offered = false
	return j.n, outcome == workpool.Done
}
