// SPDX-License-Identifier: Apache-2.0

package fdguard

import (
	"runtime"
	"sync/atomic"
	"testing"
)

func TestCloseWaitsForLeave(t *testing.T) {
	g := New()
	if !g.Enter() {
		t.Fatal("Enter = false on an open Guard")
	}
	var out atomic.Bool
	done := make(chan bool)
	go func() {
		g.Close()
		done <- out.Load()
	}()
	for g.state.Load() != closed {
		runtime.Gosched()
	}
	out.Store(true)
	g.Leave()
	if !<-done {
		t.Error("Close returned before Leave")
	}
}

func TestOpenedGuardWorksAgain(t *testing.T) {
	g := New()
	for range 2 {
		g.Close()
		g.Open()
		if !g.Enter() {
			t.Fatal("Enter = false after Open")
		}
		left := make(chan struct{})
		go func() {
			defer close(left)
			g.Close()
		}()
		for g.state.Load() != closed {
			runtime.Gosched()
		}
		g.Leave()
		<-left
		g.Open()
	}
}

func TestEnterFailsAfterClose(t *testing.T) {
	g := New()
	g.Close()
	if g.Enter() {
		t.Error("Enter = true after Close")
	}
}

func TestEnterWorksAgainAfterLeave(t *testing.T) {
	g := New()
	for range 3 {
		if !g.Enter() {
			t.Fatal("Enter = false after Leave")
		}
		g.Leave()
	}
}
