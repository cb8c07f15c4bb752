// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestPortChangesReuseBuffers attaches many ports in turn, as flaps of the interface do.
func TestPortChangesReuseBuffers(t *testing.T) {
	e, _ := newIdleEngine(2)
	const cycles = 10
	var ports [1 + cycles]underlay.Port
	for i := range ports {
		ports[i], _ = underlay.Pipe(2)
	}
	var before, after runtime.MemStats
	for i, port := range ports {
		if i == 1 { // the first port allocates what the others use
			runtime.ReadMemStats(&before)
		}
		expect.NoError(t, e.Attach(port))
		expect.NoError(t, e.Detach())
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / cycles; each > maxElement {
		t.Errorf("each port allocated %d bytes, want at most one buffer of %d", each, maxElement)
	}
}

func TestMemoryIsGivenBackWithoutGrowth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var freed atomic.Int32
		m := &trimmer{free: func() { freed.Add(1) }}
		for range 3 { // while memory grows, none is given back
			m.note()
			m.note()
			time.Sleep(trimDelay - 1)
			if n := freed.Load(); n != 0 {
				t.Fatalf("gave back %d times while memory grows, want 0", n)
			}
		}
		for burst := int32(1); burst <= 3; burst++ {
			time.Sleep(trimPause)
			if n := freed.Load(); n != burst {
				t.Fatalf("gave back %d times after %d bursts", n, burst)
			}
			m.note()
		}
	})
}

func TestMemoryIsGivenBackRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var freed atomic.Int32
		m := &trimmer{free: func() { freed.Add(1) }}
		for range 10 * trimPause / (2 * trimDelay) {
			m.note()
			time.Sleep(2 * trimDelay)
		}
		if n := freed.Load(); n < 9 || n > 10 {
			t.Errorf("gave back %d times within 10 pauses, want 10", n)
		}
	})
}

// TestMemoryOfBusyLaneIsKept has a lane that uses its buffers between the two collections of giveBack. Under the race detector a sync.Pool drops every fourth buffer.
func TestMemoryOfBusyLaneIsKept(t *testing.T) {
	const n = 8 * ownBuffers
	use := func(s *bufferSet) {
		bufs := make([]*buffer, n)
		for i := range bufs {
			bufs[i] = s.take(maxElement)
		}
		for _, b := range bufs {
			s.release(b)
		}
		s.recycle()
	}
	for _, busy := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := &bufferSet{}
			use(s)
			before, done := s.made, make(chan struct{})
			go func() {
				giveBack()
				close(done)
			}()
			synctest.Wait() // until it sleeps
			if busy {
				use(s)
			}
			<-done
			use(s)
			if again := s.made - before; again > n*3/4 == busy {
				t.Errorf("busy lane %v: allocated %d of %d buffers again", busy, again, n)
			}
		})
	}
}
