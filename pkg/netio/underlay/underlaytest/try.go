// SPDX-License-Identifier: Apache-2.0

package underlaytest

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// tryContract is the part of the contract about receiving without waiting.
func tryContract() map[string]func(*testing.T, Subject) {
	return map[string]func(*testing.T, Subject){
		"TryRecvDoesNotWait":                tryRecvDoesNotWait,
		"TryRecvKeepsOrderWithRecv":         tryRecvKeepsOrderWithRecv,
		"TryRecvRespectsCapacity":           tryRecvRespectsCapacity,
		"TryRecvOnClosedPortReturnsNothing": tryRecvOnClosedPortReturnsNothing,
		"TryRecvDuringClose":                tryRecvDuringClose,
		"TryRecvAllocatesNothing":           tryRecvAllocatesNothing,
		"TryRecvLeavesOtherElementsAlone":   tryRecvLeavesOtherElementsAlone,
	}
}

func tryRecvDoesNotWait(t *testing.T, s Subject) {
	got := make(chan int)
	go func() { got <- s.B.Lane(0).TryRecv(newRX(4, 65535)) }()
	select {
	case n := <-got:
		if n != 0 {
			t.Errorf("%d elements are there before any was sent", n)
		}
	case <-time.After(timeout):
		t.Fatal("TryRecv waits")
	}
	to := s.ToB(false)
	run := makeRun(&to, 3, 100, 50, 1, 1)
	send(t, s.A.Lane(0), run)
	datagrams, _ := receive(t, s.B.Lane(0), 3) // the empty TryRecv consumed nothing
	expect(t, datagrams, run)
}

// trying receives without waiting if possible.
type trying struct {
	lane  underlay.Lane
	tried int // elements that TryRecv found
}

func (t *trying) Recv(rx []underlay.Datagrams) (int, error) {
	if n := t.lane.TryRecv(rx[:1]); n > 0 {
		t.tried += n
		return n, nil
	}
	return t.lane.Recv(rx[:1])
}

func tryRecvKeepsOrderWithRecv(t *testing.T, s Subject) {
	to := s.ToB(false)
	var runs []underlay.Run
	for i := range 100 {
		runs = append(runs, makeRun(&to, 2, 64+i, 32+i, 1, uint32(2*i)))
	}
	send(t, s.A.Lane(0), runs...)
	lane := &trying{lane: s.B.Lane(0)}
	first := newRX(1, 65535)
	if n, err := lane.lane.Recv(first); n != 1 || err != nil {
		t.Fatalf("Recv = %d, %v", n, err)
	}
	got := Flatten(&first[0])
	rest, from := receive(t, lane, 200-len(got))
	expect(t, append(got, rest...), runs...)
	if lane.tried == 0 {
		t.Error("TryRecv found nothing")
	}
	if from.Dst.Port() != s.A.LocalPort() || from.Src != to.Dst.Addr() {
		t.Errorf("the last came from %v to %v", from.Dst, from.Src)
	}
}

func tryRecvRespectsCapacity(t *testing.T, s Subject) {
	to := s.ToB(false)
	runs := []underlay.Run{makeRun(&to, 1, 10, 10, 1, 1), makeRun(&to, 1, 20, 20, 1, 2), makeRun(&to, 1, 30, 30, 1, 3)}
	send(t, s.A.Lane(0), runs...)
	if n := s.B.Lane(0).TryRecv(nil); n != 0 {
		t.Errorf("TryRecv into nothing = %d", n)
	}
	got, _ := receive(t, s.B.Lane(0), 3)
	expect(t, got, runs...)
}

// tryRecvLeavesOtherElementsAlone receives into the middle of a ring, while its other elements still wait for
// processing.
func tryRecvLeavesOtherElementsAlone(t *testing.T, s Subject) {
	to := s.ToB(false)
	runs := []underlay.Run{makeRun(&to, 1, 100, 100, 1, 1), makeRun(&to, 1, 200, 200, 1, 2), makeRun(&to, 1, 300, 300, 1, 3)}
	rx := newRX(3, 65535)
	for _, k := range []int{2, 0, 1} {
		send(t, s.A.Lane(0), runs[k])
		n := s.B.Lane(0).TryRecv(rx[k : k+1])
		if n == 0 {
			var err error
			if n, err = s.B.Lane(0).Recv(rx[k : k+1]); err != nil {
				t.Fatal(err)
			}
		}
		if n != 1 {
			t.Fatalf("got %d elements, want 1", n)
		}
	}
	var got [][]byte
	for k := range rx {
		got = append(got, Flatten(&rx[k])...)
	}
	expect(t, got, runs...)
}

func tryRecvOnClosedPortReturnsNothing(t *testing.T, s Subject) {
	to := s.ToB(false)
	send(t, s.A.Lane(0), makeRun(&to, 1, 10, 10, 1, 1))
	if err := s.B.Close(); err != nil {
		t.Fatal(err)
	}
	if n := s.B.Lane(0).TryRecv(newRX(1, 65535)); n != 0 {
		t.Errorf("TryRecv = %d", n)
	}
}

// tryRecvDuringClose is for the race detector: one goroutine calls Recv and TryRecv until another has closed the port.
func tryRecvDuringClose(t *testing.T, s Subject) {
	to := s.ToB(false)
	ended, trying := make(chan error, 1), make(chan struct{})
	go func() {
		rx := newRX(4, 65535)
		for tries := 0; ; tries++ {
			if tries == 100 {
				close(trying)
			}
			if n := s.B.Lane(0).TryRecv(rx); n > 0 || tries < 100 {
				continue
			}
			if _, err := s.B.Lane(0).Recv(rx); err != nil {
				ended <- err
				return
			}
		}
	}()
	for range 100 {
		send(t, s.A.Lane(0), makeRun(&to, 1, 10, 10, 1, 1))
	}
	<-trying
	if err := s.B.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("Recv: %v", err)
		}
	case <-time.After(timeout):
		t.Fatal("it receives still")
	}
}

func tryRecvAllocatesNothing(t *testing.T, s Subject) {
	to := s.ToB(false)
	rx := newRX(8, 65535)
	runs := []underlay.Run{makeRun(&to, 1, 1400, 1400, 1, 1)}
	allocs := allocations(func() {
		if s.A.Lane(0).Send(runs) != 0 {
			t.Fatal(runs[0].Err)
		}
		if n := s.B.Lane(0).TryRecv(rx); n > 0 {
			return
		}
		if _, err := s.B.Lane(0).Recv(rx); err != nil {
			t.Fatal(err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
