// SPDX-License-Identifier: Apache-2.0

package tun

import "sync/atomic"

// The states of a gate.
const (
	gateIdle int32 = iota
	gateBusy
	gateShut
)

// gate keeps a descriptor open while its one user is in a system call: shut returns only when the user has left and
// can never come back, so that the number is not reused under it. It costs the user two uncontended
// compare-and-swaps and no lock. Only one goroutine may use enter and leave.
type gate struct {
	state atomic.Int32
	left  chan struct{}
}

func newGate() gate { return gate{left: make(chan struct{})} }

// enter reports whether the user may go in; every true needs a leave.
func (g *gate) enter() bool { return g.state.CompareAndSwap(gateIdle, gateBusy) }

func (g *gate) leave() {
	if !g.state.CompareAndSwap(gateBusy, gateIdle) {
		close(g.left)
	}
}

// shut may be called once, after whatever makes a blocked user return.
func (g *gate) shut() {
	if g.state.Swap(gateShut) == gateBusy {
		<-g.left
	}
}
