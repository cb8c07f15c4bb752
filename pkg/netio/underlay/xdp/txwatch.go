// SPDX-License-Identifier: Apache-2.0

package xdp

import "errors"

const (
	// stalledReviews is the number of reviews in a row after which a socket is replaced. In each
	// of them, ten seconds apart, the kernel has frames and completes none. After the first one
	// the kernel is woken.
	stalledReviews = 2
	// maxStalls is the number of sockets of a lane that are replaced for that reason. Then the lane stays with its UDP socket until AF_XDP
	// is configured anew: the driver is at fault.
	maxStalls = 3
)

var (
	errStalled  = errors.New("the device has not sent the frames of the socket for more than ten seconds")
	errRefusing = errors.New("the device has stopped sending the frames of three sockets in a row, the lane uses its UDP socket until AF_XDP is configured anew")
)

// txWatch finds a socket whose frames the kernel does not send. The supervisor has one for each lane socket, and checks it when it reviews
// the paths in use, so nothing is checked without traffic.
type txWatch struct {
	known   bool
	done    uint32 // frames that the kernel had completed at the last review
	reviews int    // since when that is so, while it had frames
}

// check notes the state at a review. It reports whether to wake the kernel, or to replace the socket.
func (w *txWatch) check(done uint32, outstanding int) (wake, stalled bool) {
	if outstanding == 0 || !w.known || done != w.done {
		*w = txWatch{known: true, done: done}
		return false, false
	}
	w.reviews++
	return w.reviews < stalledReviews, w.reviews >= stalledReviews
}

// checkTransmits wakes or fails the sockets whose frames the kernel does not send. repair replaces
// the failed sockets.
func (sup *supervisor) checkTransmits() {
	for i, l := range sup.port.lanes {
		c := l.laneSocket.Load()
		if c == nil || !c.works() {
			continue
		}
		wake, stalled := c.watch.check(c.progress())
		switch {
		case stalled && c.fail(errStalled):
			sup.countStall(i)
			sup.publishChange()
		case wake:
			c.recordError(c.socket.KickTx())
		}
	}
}

// countStall counts a socket that has stalled.
func (sup *supervisor) countStall(i int) {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	r := &sup.report.lanes[i]
	r.stalls++
	r.stalled++
}

// refuses reports whether a lane's sockets have stalled too often on this device.
func (sup *supervisor) refuses(i int) bool {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	return sup.report.lanes[i].stalled >= maxStalls
}

// forgiveStalls permits AF_XDP on all lanes again, for another device or mode.
func (sup *supervisor) forgiveStalls() {
	sup.mu.Lock()
	defer sup.mu.Unlock()
	for i := range sup.report.lanes {
		sup.report.lanes[i].stalled = 0
	}
}
