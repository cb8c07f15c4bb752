// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"runtime"
	"sync/atomic"
	"testing"
)

func TestShutWaitsForTheUserToLeave(t *testing.T) {
	g := New()
	if !g.Enter() {
		t.Fatal("an open gate refused entry")
	}
	var out atomic.Bool
	done := make(chan bool)
	go func() {
		g.Shut()
		done <- out.Load()
	}()
	for g.state.Load() != shut {
		runtime.Gosched()
	}
	out.Store(true)
	g.Leave()
	if !<-done {
		t.Error("Shut returned while the user was inside")
	}
}

func TestNobodyEntersAfterShut(t *testing.T) {
	g := New()
	g.Shut()
	if g.Enter() {
		t.Error("entered a shut gate")
	}
}

func TestAGateOpensAgainAfterLeave(t *testing.T) {
	g := New()
	for range 3 {
		if !g.Enter() {
			t.Fatal("refused entry")
		}
		g.Leave()
	}
}
