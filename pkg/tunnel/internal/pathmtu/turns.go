// SPDX-License-Identifier: Apache-2.0

package pathmtu

import (
	"sync/atomic"
	"time"
)

// lookUpShare is the minimum time, in ns, between lookups for different peers. Each costs some 50 µs,
// and a change of routes concerns all peers.
const lookUpShare = int64(time.Millisecond)

// maxPeers is device.MaxPeers.
const maxPeers = 1 << 20

// Turns gives the peers turns for lookups of their routes. It is safe for concurrent use.
type Turns struct{ next atomic.Int64 }

// Reserve returns the first free turn from now on.
func (l *Turns) Reserve(now int64) (at int64) {
	for {
		next := l.next.Load()
		at = max(now, next)
		if at-now > maxPeers*lookUpShare { // the clock has gone back
			at = now
		}
		if l.next.CompareAndSwap(next, at+lookUpShare) {
			return at
		}
	}
}
