// SPDX-License-Identifier: Apache-2.0

// Package soak carries traffic between two devices for as long as it is told to (-soak, make soak), with a new session
// several times a second: nothing may be lost, nothing reordered, and the heap must stay as it is.
//
// The devices run in a synctest bubble: whenever all that was sent has arrived, their clock jumps to where the session
// is due to be replaced, which then happens under the traffic that follows. So all timers of the protocol are at work.
//
// With -underlay xdp the tunnel is a real one over AF_XDP, between two network namespaces: then every frame must be back in the
// end, and none ever have had two owners.
package soak

import (
	"flag"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/device/devicetest/flow"
)

var (
	duration = flag.Duration("soak", 3*time.Second, "how long to carry traffic")
	way      = flag.String("underlay", "", "memory: in memory alone; xdp: over AF_XDP alone; both if empty")
)

// What the heap may grow by while it is flat: the in-memory edges keep their buffers, which grow until each has held the
// largest train. A leak per packet or per session exceeds this soon, most of all in objects.
const (
	slackBytes   = 32 << 20
	slackObjects = 2000
)

func TestNothingIsLostReorderedOrLeaked(t *testing.T) {
	if *way != "" && *way != "memory" {
		t.Skipf("-underlay %s", *way)
	}
	var settled, over atomic.Bool // by the wall clock, which the bubble does not see
	defer time.AfterFunc(*duration/4, func() { settled.Store(true) }).Stop()
	defer time.AfterFunc(*duration, func() { over.Store(true) }).Stop()
	synctest.Test(t, func(t *testing.T) { soak(t, &settled, &over) })
}

func soak(t *testing.T, settled, over *atomic.Bool) {
	a, b := devicetest.Pair(t, devicetest.Options{Lanes: 2, Depth: 4096})
	a.Send(flow.Element(a.To(b, 1, false).UDP(nil)))
	b.Next()
	load := devicetest.NewLoad(t, a, b, 8)
	var sessions int
	var early *runtime.MemStats
	for !over.Load() && !t.Failed() {
		time.Sleep(121 * time.Second)
		before := a.PeerStatus(b).LastHandshake
		load.Run(300)
		a.Await("there is a new session", func() bool { return a.PeerStatus(b).LastHandshake.After(before) })
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
		t.Error("the heap has grown")
	}
}

// heap returns the state of the heap with all garbage collected.
func heap() *runtime.MemStats {
	m := new(runtime.MemStats)
	runtime.GC()
	runtime.GC() // pools are emptied by the second
	runtime.ReadMemStats(m)
	return m
}
