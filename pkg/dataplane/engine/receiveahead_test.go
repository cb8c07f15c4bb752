// SPDX-License-Identifier: Apache-2.0

package engine

import (
	mathrand "math/rand/v2"
	"net"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// source is an underlay.Lane from which a lane receives elements until all have been taken.
type source struct {
	underlay.Lane
	tb        testing.TB
	random    *mathrand.Rand
	elements  []sourceElement
	reading   atomic.Bool
	lane      int // the lane's thread
	byWorkers int // receive calls
}

// sourceElement is one element to receive, and what happens just before.
type sourceElement struct {
	run    []byte
	size   int
	before func()
}

// TryRecv implements underlay.Lane. It returns a few elements, or none.
func (s *source) TryRecv(rx []underlay.Datagrams) (n int) {
	if s.reading.Swap(true) {
		s.tb.Error("two threads receive at once")
	}
	defer s.reading.Store(false)
	if unix.Gettid() != s.lane {
		s.byWorkers++
	}
	for range s.random.IntN(6) {
		if len(s.elements) == 0 {
			break
		}
		e := &s.elements[0]
		if e.before != nil {
			e.before()
		}
		rx[n].N, rx[n].SegSize, rx[n].From = copy(rx[n].Buf, e.run), e.size, there
		s.elements = s.elements[1:]
		n++
	}
	return n
}

// Recv implements underlay.Lane.
func (s *source) Recv(rx []underlay.Datagrams) (n int, err error) {
	for n == 0 {
		if len(s.elements) == 0 {
			return 0, net.ErrClosed
		}
		n = s.TryRecv(rx)
	}
	return n, nil
}

// TestWorkersReceiveForLaneInOrder lets workers receive trains and datagrams of one flow. Now and then the session ends meanwhile.
func TestWorkersReceiveForLaneInOrder(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := runtime.GOMAXPROCS(runtime.NumCPU() + 3) // workers that look for jobs hold their processors
	defer runtime.GOMAXPROCS(before)
	r := newRigWithWorkers(t, workpool.Config{Workers: 3}).hasty()
	byWorkers, packets, order := 0, 0, flow.Checker{Lossy: true}
	f := flow.Flow{Ends: in4}
	for round := 0; goesOn(round, 20, byWorkers > 0); round++ {
		r.keys, r.remote = r.newSession(r.peer, true)
		random := mathrand.New(mathrand.NewPCG(uint64(round), 8))
		s := &source{tb: t, random: random, lane: unix.Gettid()}
		for range 60 {
			n := 44
			if random.IntN(8) == 0 {
				n = 1 + random.IntN(3)
			}
			run, size := r.seal(packetsOf(t, f.Train(n, 1380))...)
			s.elements = append(s.elements, sourceElement{run: run, size: size})
			packets += n
		}
		if round%4 == 3 {
			s.elements[random.IntN(60)].before = r.keys.Wipe
		}
		r.rx.run(s, s.TryRecv)
		byWorkers += s.byWorkers
		for _, e := range r.delivered() {
			if err := order.Take(e); err != nil {
				t.Error(err)
			}
		}
	}
	dropped, delivered := int(r.allDrops()), int(order.Total())
	if delivered+dropped != packets || delivered == 0 || r.drops(drop.RXExpired) == 0 {
		t.Errorf("%d packets delivered, %d dropped, %d of them expired, of %d", delivered, dropped, r.drops(drop.RXExpired), packets)
	}
	if byWorkers == 0 {
		t.Error("no worker received")
	}
	t.Logf("workers received %d times", byWorkers)
}
