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
	set    sync.Map          // of Destination
}

// Destination is the part of an endpoint that decides its route, but for rules with ports. The zero Destination is none.
type Destination struct {
	Addr  netip.Addr
	Scope uint32
}

// Destination returns the destination of an endpoint.
func (e *Endpoint) Destination() Destination { return Destination{e.Dst.Addr(), e.Scope} }

// SetLoop adds a destination, or removes it.
func (l *Loops) SetLoop(to Destination, loops bool) {
	if loops {
		if _, old := l.set.LoadOrStore(to, nil); !old {
			l.count(to.Addr).Add(1)
		}
	} else if _, old := l.set.LoadAndDelete(to); old {
		l.count(to.Addr).Add(-1)
	}
}

// IsLoop reports whether a destination is in the set.
func (l *Loops) IsLoop(to *Endpoint) bool {
	if l.count(to.Dst.Addr()).Load() == 0 {
		return false
	}
	_, ok := l.set.Load(to.Destination())
	return ok
}

// count returns the element of counts for an address.
func (l *Loops) count(to netip.Addr) *atomic.Int32 { return &l.counts[to.As16()[15]] }
