// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
)

// ErrLoop is the error of sending to a destination of SetLoop. It is syscall.ELOOP, whose own text is about symbolic links.
var ErrLoop error = loopError{}

type loopError struct{}

func (loopError) Error() string        { return "the route leads into the tunnel itself" }
func (loopError) Is(target error) bool { return target == syscall.ELOOP }

// Loops is a set of destinations, by address and scope. The zero Loops is empty. A lookup costs an atomic load, unless an address in the set has
// the same last byte.
type Loops struct {
	counts [256]atomic.Int32 // of set, by the last byte of the address
	set    sync.Map          // of destination
}

type destination struct {
	addr  netip.Addr
	scope uint32
}

// SetLoop adds a destination, or removes it.
func (l *Loops) SetLoop(to *Endpoint, loops bool) {
	key := destination{to.Dst.Addr(), to.Scope}
	if loops {
		if _, old := l.set.LoadOrStore(key, nil); !old {
			l.count(to).Add(1)
		}
	} else if _, old := l.set.LoadAndDelete(key); old {
		l.count(to).Add(-1)
	}
}

// IsLoop reports whether a destination is in the set.
func (l *Loops) IsLoop(to *Endpoint) bool {
	if l.count(to).Load() == 0 {
		return false
	}
	_, ok := l.set.Load(destination{to.Dst.Addr(), to.Scope})
	return ok
}

// count returns the element of counts for a destination.
func (l *Loops) count(to *Endpoint) *atomic.Int32 { return &l.counts[to.Dst.Addr().As16()[15]] }
