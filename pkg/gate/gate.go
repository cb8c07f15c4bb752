// SPDX-License-Identifier: Apache-2.0

// Package gate keeps a file descriptor open while somebody is in a system call on it.
package gate

import "sync/atomic"

// The states of a gate.
const (
	idle int32 = iota
	busy
	shut
)

// Gate keeps a descriptor open while its one user is in a system call: Shut returns only when the user has left and
// can never come back, so that the number is not reused under it. It costs the user two uncontended
// compare-and-swaps and no lock. Only one goroutine may use Enter and Leave.
type Gate struct {
	state atomic.Int32
	left  chan struct{}
}

// New returns an open gate.
func New() Gate { return Gate{left: make(chan struct{})} }

// Enter reports whether the user may go in; every true needs a Leave.
func (g *Gate) Enter() bool { return g.state.CompareAndSwap(idle, busy) }

// Leave says that the user is out of the system call.
func (g *Gate) Leave() {
	if !g.state.CompareAndSwap(busy, idle) {
		close(g.left)
	}
}

// Shut may be called once, after whatever makes a blocked user return.
func (g *Gate) Shut() {
	if g.state.Swap(shut) == busy {
		<-g.left
	}
}
