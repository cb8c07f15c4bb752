// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// chanLane is an underlay.Lane that receives from a channel until it is closed.
type chanLane struct {
	underlay.Lane
	messages chan []byte
}

// Recv implements underlay.Lane.
func (c chanLane) Recv(rx []underlay.Datagrams) (int, error) {
	msg, ok := <-c.messages
	if !ok {
		return 0, net.ErrClosed
	}
	rx[0].N, rx[0].SegSize, rx[0].From = copy(rx[0].Buf, msg), len(msg), there
	return 1, nil
}

// TryRecv implements underlay.Lane.
func (chanLane) TryRecv([]underlay.Datagrams) int { return 0 }

// TestSleepingLaneForgetsEndedStreams: nothing else arrives that would wake it. A stream in use stays, also if the lane sleeps between its messages.
func TestSleepingLaneForgetsEndedStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.stream(8)
		conn := chanLane{messages: make(chan []byte)}
		go r.rx.run(conn, conn.TryRecv)
		defer close(conn.messages)
		arrive := func(n int) {
			conn.messages <- r.sealAs(s.first+uint64(n), s.plain[n])
			synctest.Wait()
		}
		arrive(0)
		list := func() []*order { // of a lane that sleeps
			r.rx.orders.sleeping.mu.Lock()
			defer r.rx.orders.sleeping.mu.Unlock()
			return slices.Clone(r.rx.orders.list)
		}
		first := list()[0]
		for n := 1; n < 8; n++ {
			time.Sleep(time.Duration(orderIdle) * 3 / 4)
			arrive(n)
		}
		if !slices.Contains(list(), first) {
			t.Error("the order of a stream in use was forgotten")
		}
		time.Sleep(3 * time.Duration(orderIdle))
		synctest.Wait()
		if n := len(list()); n != 0 {
			t.Errorf("the lane keeps the order of %d streams", n)
		}
		if got := s.got(); !slices.Equal(got, []int{0, 1, 2, 3, 4, 5, 6, 7}) {
			t.Errorf("got %v", got)
		}
	})
}

// TestLaneWithWaitingMessagesPausesBetweenCalls: a lane that never pauses would use a whole core. In a bubble time passes only while it pauses.
func TestLaneWithWaitingMessagesPausesBetweenCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		began := time.Now()
		r.engine.cfg.Clock = func() int64 { return r.now + int64(time.Since(began)) }
		s := r.stream(2)
		conn, calls := chanLane{messages: make(chan []byte)}, 0
		most := int(spread.MaxOrderWait/orderPause) + 1
		tryRecv := func(rx []underlay.Datagrams) int {
			if calls++; calls <= most {
				return 0
			}
			msg := r.sealAs(s.first, s.plain[0]) // ends the wait
			rx[0].N, rx[0].SegSize, rx[0].From = copy(rx[0].Buf, msg), len(msg), there
			return 1
		}
		go r.rx.run(conn, tryRecv)
		defer close(conn.messages)
		conn.messages <- r.sealAs(s.first+1, s.plain[1])
		time.Sleep(time.Second)
		synctest.Wait()
		if got := s.got(); calls > most || calls < 2 || !slices.Equal(got, []int{1}) {
			t.Errorf("got %v after %d calls, want at most %d in %v", got, calls, most, spread.MaxOrderWait)
		}
	})
}
