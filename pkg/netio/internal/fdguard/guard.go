// SPDX-License-Identifier: Apache-2.0

package fdguard

import "sync/atomic"

// The states of a Guard.
const (
	idle int32 = iota
	busy
	closed
)

// Guard keeps a file descriptor open while its one user is in a system call on it. Close returns only after the user
// has left and cannot return, so that the kernel cannot reuse the descriptor's number under the call. Each call
// costs the user two uncontended compare-and-swaps and no lock. Only one goroutine at a time may be between Enter and Leave.
type Guard struct {
	state atomic.Int32
	done  chan struct{}
}

// New returns an open Guard.
func New() Guard { return Guard{done: make(chan struct{})} }

// Enter reports whether the user may use the descriptor. Every true needs a Leave.
func (g *Guard) Enter() bool { return g.state.CompareAndSwap(idle, busy) }

// Leave ends the use that Enter began.
func (g *Guard) Leave() {
	if !g.state.CompareAndSwap(busy, idle) {
		close(g.done)
	}
}

// Close waits for the user to leave and rejects it from then on. It may be called once, after waking a blocked user, and once more after each
// Open.
func (g *Guard) Close() {
	if g.state.Swap(closed) == busy {
		<-g.done
	}
}

// Closing reports whether Close was called. The user asks between two system calls that Close does not interrupt.
func (g *Guard) Closing() bool { return g.state.Load() == closed }

// Open accepts the user again. The goroutine that closed the Guard calls it, while no other calls a method.
func (g *Guard) Open() {
	g.done = make(chan struct{})
	g.state.Store(idle)
}
