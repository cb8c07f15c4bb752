// SPDX-License-Identifier: Apache-2.0

// Package soak carries traffic between two devices for the duration of -soak (make soak), with a new session several times a
// second. No packet may be lost or reordered, and the heap must not grow.
//
// The devices run in a synctest bubble. When all packets have arrived, the bubble's clock jumps to the time of the next rekey,
// which then happens under the following traffic. All timers of the protocol therefore run.
//
// A second tunnel is a real one over AF_XDP between two network namespaces. At the end every UMEM frame must be returned, and no frame
// may ever have had two owners.
//
// Two daemons with a third tunnel go through cycles of changes: peers, addresses, MTU, underlay, spread, down and up, upgrades in place.
// At regular intervals the changes rest until a session was renewed because of its age. No TCP connection may end, and the daemons must not
// grow.
package soak

import (
	"flag"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

var (
	duration = flag.Duration("soak", 3*time.Second, "how long to carry traffic")
	only     = flag.String("only", "", "memory, xdp or churn: only this test; empty: all")
)

// skipUnless skips a test that -only leaves out.
func skipUnless(t *testing.T, name string) {
	t.Helper()
	if *only != "" && *only != name {
		t.Skipf("-only %s", *only)
	}
}

// Limits of heap growth. The in-memory TUN device and underlay keep their buffers, which grow until each has held the largest
// train. A leak per packet or per session soon exceeds these limits, first in objects.
const (
	slackBytes   = 32 << 20
	slackObjects = 2000
)

func TestTrafficIsNotLostReorderedOrLeaked(t *testing.T) {
	skipUnless(t, "memory")
	var settled, over atomic.Bool // set by the wall clock, because the bubble has its own
	defer time.AfterFunc(*duration/4, func() { settled.Store(true) }).Stop()
	defer time.AfterFunc(*duration, func() { over.Store(true) }).Stop()
	synctest.Test(t, func(t *testing.T) { soak(t, &settled, &over) })
}

func soak(t *testing.T, settled, over *atomic.Bool) {
	a, b := devicetest.Pair(t, devicetest.Options{Lanes: 2, Depth: 4096})
	a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
	b.Next()
	load := devicetest.NewLoad(t, a, b, 8)
	var sessions int
	var early *runtime.MemStats
	for !over.Load() && !t.Failed() {
		time.Sleep(121 * time.Second)
		before := a.PeerStatus(b).LastHandshake
		load.Run(300)
		a.Await("a new session", func() bool { return a.PeerStatus(b).LastHandshake.After(before) })
		sessions++
		if early == nil && settled.Load() {
			early = heap()
		}
	}
	t.Logf("%d packets, %d sessions", load.Packets(), sessions)
	if early != nil {
		wantFlat(t, early, heap())
	}
	for _, h := range []*devicetest.Host{a, b} {
		if d := h.AllDrops(); len(d) != 0 {
			t.Errorf("host %d dropped %v", h.N, d)
		}
	}
}

func wantFlat(t *testing.T, early, late *runtime.MemStats) {
	t.Logf("heap: %d KiB in %d objects, at the end %d KiB in %d",
		early.HeapAlloc>>10, early.HeapObjects, late.HeapAlloc>>10, late.HeapObjects)
	if late.HeapAlloc > early.HeapAlloc+slackBytes || late.HeapObjects > early.HeapObjects+slackObjects {
		t.Error("the heap grew beyond the limit")
	}
}

// heap returns the memory statistics after a garbage collection.
func heap() *runtime.MemStats {
	m := new(runtime.MemStats)
	runtime.GC()
	runtime.GC() // the second collection empties sync.Pool
	runtime.ReadMemStats(m)
	return m
}
