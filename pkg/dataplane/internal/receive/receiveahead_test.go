// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"bytes"
	mathrand "math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
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
		rx[n].N, rx[n].SegSize, rx[n].From = copy(rx[n].Buf, e.run), e.size, lanetest.There
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
	r := newHastyRig(t, workpool.Config{Workers: 3})
	byWorkers, packets, order := 0, 0, flow.Checker{Lossy: true}
	f := flow.Flow{Ends: lanetest.In4}
	for round := 0; lanetest.GoesOn(round, 20, byWorkers > 0); round++ {
		r.Keys, r.Remote = r.NewSession(r.Peer, true)
		random := mathrand.New(mathrand.NewPCG(uint64(round), 8))
		s := &source{tb: t, random: random, lane: unix.Gettid()}
		for range 60 {
			n := 44
			if random.IntN(8) == 0 {
				n = 1 + random.IntN(3)
			}
			run, size := r.Seal(lanetest.PacketsOf(t, f.Train(n, 1380))...)
			s.elements = append(s.elements, sourceElement{run: run, size: size})
			packets += n
		}
		if round%4 == 3 {
			s.elements[random.IntN(60)].before = r.Keys.Wipe
		}
		r.rx.Run(s, s.TryRecv, nil)
		byWorkers += s.byWorkers
		for _, e := range r.Delivered() {
			if err := order.Take(e); err != nil {
				t.Error(err)
			}
		}
	}
	dropped, delivered := int(r.AllDrops()), int(order.Total())
	if delivered+dropped != packets || delivered == 0 || r.Drops(drop.RXExpired) == 0 {
		t.Errorf("%d packets delivered, %d dropped, %d of them expired, of %d", delivered, dropped, r.Drops(drop.RXExpired), packets)
	}
	if byWorkers == 0 {
		t.Error("no worker received")
	}
	t.Logf("workers received %d times", byWorkers)
}

// beginning is a Control, and draws indices: each handshake message begins a session with the index drawn last.
type beginning struct {
	rig     *rig
	session *lane.Session
	index   byte
}

// Read draws an index.
func (b *beginning) Read(p []byte) (int, error) {
	clear(p)
	p[0] = b.index
	return len(p), nil
}

// Handshake implements Control.
func (b *beginning) Handshake([]byte, underlay.Endpoint) drop.Reason {
	if _, err := b.rig.Shared.Sessions.Add(b.session); err != nil {
		b.rig.TB.Error(err)
	}
	return drop.None
}

// pausing is a SlowPath that lets a lane wait while it opens the first train of a session.
type pausing struct {
	*lanetest.Owner
	until chan bool
}

// Confirm implements SlowPath.
func (p *pausing) Confirm(*session.Keypair) { <-p.until }

// TestWorkerReceivesIntoNoBufferInUse opens a packet in the buffer of a receive call, since its session begins just before. A worker receives
// before the lane has written the packet.
func TestWorkerReceivesIntoNoBufferInUse(t *testing.T) {
	r := newRigWithWorkers(t, workpool.Config{Workers: 1})
	begin := &beginning{rig: r, index: 1}
	r.Shared.Sessions, r.Shared.Control = session.NewTable[*lane.Session](begin), begin
	keys, remote := r.NewSession(r.Peer, true)
	begin.session, _ = r.Shared.Sessions.Lookup(keys.Local())
	r.Shared.Sessions.Remove(keys.Local())
	packet := lanetest.In4.UDP([]byte("data"))
	message := r.Message(remote, packet)
	begun := append(make([]byte, len(message)), message...)
	begun[0] = byte(wire.TypeCookieReply) // of the same size
	r.arriveFrom(0, lanetest.There, begun, len(message))

	begin.index = 2
	r.Keys, r.Remote = r.NewSession(r.Peer, true)
	begin.index = 1
	f := flow.Flow{Ends: lanetest.In4}
	for i := range 4 {
		run, size := r.Seal(lanetest.PacketsOf(t, f.Train(20, 1380))...)
		r.arriveFrom(1+i, lanetest.There, run, size)
	}
	received := make(chan bool)
	r.Peer.SlowPath = &pausing{r.Owner, received}
	r.Peer.Unconfirmed.Store(r.Keys)
	r.rx.recv.tryRecv = func(rx []underlay.Datagrams) int {
		clear(rx[0].Buf[:1<<10])
		close(received)
		return 0
	}
	r.rx.lane.OpenJobs.ReportBacklog(Slots)
	r.rx.handleReceived(5)
	if !slices.ContainsFunc(r.Delivered(), func(train []byte) bool { return bytes.HasSuffix(train, packet) }) {
		t.Error("the packet of the session that began was overwritten")
	}
	if r.rx.lane.OpenJobs.AwaitOffer(&r.Scratch) != workpool.Done {
		t.Error("no worker received")
	}
}

// TestLaneHandlesTrainsWhileWorkerReceives has a worker whose receive call ends only after the lane has handled all that waits.
func TestLaneHandlesTrainsWhileWorkerReceives(t *testing.T) {
	r := newRigWithWorkers(t, workpool.Config{Workers: 1})
	f := flow.Flow{Ends: lanetest.In4}
	for i := range 4 { // more than a quantum
		run, size := r.Seal(lanetest.PacketsOf(t, f.Train(20, 1380))...)
		r.arriveFrom(i, lanetest.There, run, size)
	}
	begun, end := make(chan bool), make(chan bool)
	r.rx.recv.tryRecv = func([]underlay.Datagrams) int {
		close(begun)
		<-end
		return 0
	}
	r.rx.lane.OpenJobs.ReportBacklog(Slots)
	r.rx.handleReceived(4)
	<-begun
	for !r.rx.idle() {
		n, ok := r.rx.takeReceived()
		if n != 0 || !ok {
			t.Errorf("while a worker receives, got %d elements, %t, want 0, true", n, ok)
		}
		r.rx.handleReceived(n)
	}
	close(end)
	if n := len(lanetest.PacketsOf(t, r.Delivered()...)); n != 80 {
		t.Errorf("got %d packets, want 80", n)
	}
	if r.rx.lane.OpenJobs.AwaitOffer(&r.Scratch) != workpool.Done {
		t.Error("no worker received")
	}
}
