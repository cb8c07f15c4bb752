// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/tunnel/internal/hello"
)

// Replaced has the addresses of endpoints that the configuration has replaced. Messages still in flight
// from there must not move the peer back. A message from a source port counts for the listen port, which
// may have changed, so ports do not matter.
type Replaced struct{ state atomic.Pointer[replaced] }

// replaced does not change.
type replaced struct {
	list  []netip.Addr // newest first
	until int64
}

const (
	// maxReplaced is the number of addresses to remember when the configuration changes more often.
	maxReplaced = 8
	// replacedHold is the time, in ns, for which messages from a replaced address do not move the peer.
	// It is longer than any round trip, and than the time for which a hello waits for a worker.
	replacedHold = int64(time.Second)
)

// Hold adds an address. Only one caller runs at a time.
func (r *Replaced) Hold(address netip.Addr, now int64) {
	list := []netip.Addr{address}
	if before := r.state.Load(); before != nil && now < before.until {
		list = append(list, before.list[:min(len(before.list), maxReplaced-1)]...)
	}
	r.state.Store(&replaced{list, now + replacedHold})
}

// Has reports whether the configuration has just replaced an endpoint with this address. It takes no lock.
func (r *Replaced) Has(address netip.Addr, now int64) bool {
	s := r.state.Load()
	return s != nil && slices.Contains(s.list, address) && now < s.until
}

// Rounds limits the hellos and probes that follow when a peer roams. Two machines with one key roam with
// each message. It never limits roaming itself. The caller's lock guards all but Due.
type Rounds struct {
	next  int64       // when the next round may begin
	pause int64       // after the last round
	due   atomic.Bool // the peer has roamed since
}

// The pause doubles with each round, and begins anew when the peer has not roamed for maxRoamPause.
const (
	roamPause    = hello.Pause
	maxRoamPause = int64(time.Minute)
)

// Begin reports whether a round may begin now. If not, it is due later.
func (r *Rounds) Begin(now int64) bool {
	early := now < r.next
	if r.due.Store(early); early {
		return false
	}
	if r.pause = min(2*r.pause, maxRoamPause); r.pause == 0 || now-r.next >= maxRoamPause {
		r.pause = roamPause
	}
	r.next = now + r.pause
	return true
}

// Due reports whether a round has to wait. Until it begins, no query or probe is sent, and a hello waits.
func (r *Rounds) Due() bool { return r.due.Load() }

// Cancel is called if the round that waits is not needed.
func (r *Rounds) Cancel() { r.due.Store(false) }

// Next returns when a round is due, 0 for never.
func (r *Rounds) Next() int64 {
	if !r.due.Load() {
		return 0
	}
	return r.next
}
