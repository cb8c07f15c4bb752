// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestMemoryIsGivenBackWithoutGrowth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var freed atomic.Int32
		m := &trimmer{Free: func() { freed.Add(1) }}
		for range 3 { // while memory grows, none is given back
			m.Note()
			m.Note()
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
			m.Note()
		}
	})
}

func TestMemoryIsGivenBackRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var freed atomic.Int32
		m := &trimmer{Free: func() { freed.Add(1) }}
		for range 10 * trimPause / (2 * trimDelay) {
			m.Note()
			time.Sleep(2 * trimDelay)
		}
		if n := freed.Load(); n < 9 || n > 10 {
			t.Errorf("gave back %d times within 10 pauses, want 10", n)
		}
	})
}

// TestMemoryOfBusyLaneIsKept has a lane that uses its buffers between the two collections of GiveBack. Under the race detector a sync.Pool drops every fourth buffer.
func TestMemoryOfBusyLaneIsKept(t *testing.T) {
	const n = 8 * OwnBuffers
	use := func(s *BufferSet) {
		bufs := make([]*Buffer, n)
		for i := range bufs {
			bufs[i] = s.Take(MaxElement)
		}
		for _, b := range bufs {
			s.Release(b)
		}
		s.Recycle()
	}
	for _, busy := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := &BufferSet{}
			use(s)
			before, done := s.made, make(chan struct{})
			go func() {
				GiveBack()
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
