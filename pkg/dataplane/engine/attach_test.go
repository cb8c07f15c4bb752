// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/send"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
	"github.com/ropewalk/ropewalk/test/expect"
)

func newIdleEngine(lanes int) (*Engine, *tuntest.Fake) {
	device := tuntest.NewFake(tuntest.FakeConfig{Queues: lanes})
	return New(Config{Device: device, Control: &lanetest.Control{}, Clock: NewClock(), Rand: rand.Reader}), device
}

func TestAttachRejectsPortWithOtherLaneCount(t *testing.T) {
	e, _ := newIdleEngine(2)
	port, _ := underlaytest.Pipe(3)
	if err := e.Attach(port); err == nil {
		t.Error("a port of 3 lanes was attached to an engine of 2")
	}
	if err := e.Detach(); err != nil {
		t.Error("detaching nothing:", err)
	}
}

func TestAttachRejectsSecondPort(t *testing.T) {
	e, _ := newIdleEngine(1)
	a, b := underlaytest.Pipe(1)
	if err := e.Attach(a); err != nil {
		t.Fatal(err)
	}
	if err := e.Attach(b); err == nil {
		t.Error("two ports are attached")
	}
	if err := e.Detach(); err != nil {
		t.Fatal(err)
	}
	if err := e.Attach(b); err != nil {
		t.Error("attaching after Detach:", err)
	}
	_ = e.Detach()
}

func TestLoopsEndWhenTUNOrPortCloses(t *testing.T) {
	e, device := newIdleEngine(4)
	port, _ := underlaytest.Pipe(4)
	if err := e.Attach(port); err != nil {
		t.Fatal(err)
	}
	e.Start()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = device.Close()
		e.Wait()
		_ = e.Detach()
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the loops go on")
	}
}

func TestSlowPathCountsItsDrops(t *testing.T) {
	good := flow.WithVnetHeader(lanetest.Out4.UDP([]byte("good")))
	for _, c := range []struct {
		name string
		act  func(*engineRig)
		want drop.Reason
	}{
		{"no endpoint", func(r *engineRig) {
			r.Peer.Endpoint.Store(nil)
			r.engine.Transmit(r.Peer, r.Keys, good)
		}, drop.TXNoEndpoint},
		{"keepalive without endpoint", func(r *engineRig) {
			r.Peer.Endpoint.Store(nil)
			r.engine.SendKeepalive(r.Peer, r.Keys)
		}, drop.TXNoEndpoint},
		{"down", func(r *engineRig) { r.engine.Transmit(r.Peer, r.Keys, good) }, drop.TXDown},
		{"keepalive while down", func(r *engineRig) { r.engine.SendKeepalive(r.Peer, r.Keys) }, drop.TXDown},
		{"malformed", func(r *engineRig) { r.engine.Transmit(r.Peer, r.Keys, good[:20]) }, drop.TXMalformed},
		{"wiped", func(r *engineRig) {
			r.Keys.Wipe()
			r.engine.Transmit(r.Peer, r.Keys, good)
		}, drop.TXNoSession},
	} {
		r := newEngineRig(t)
		c.act(r)
		if got := r.engine.Stats().Drops[c.want.String()]; got != 1 {
			t.Errorf("%s: got %d drops in the statistics, want 1", c.name, got)
		}
		if got := r.Peer.Packets().TxDrops; c.want != drop.TXMalformed && got != 1 {
			t.Errorf("%s: got %d drops of the peer's, want 1", c.name, got)
		}
	}
}

func TestSlowPathSendsTrainAsOneRun(t *testing.T) {
	r := newEngineRig(t)
	ours, theirs := underlaytest.Pipe(1)
	if err := r.engine.Attach(ours); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.engine.Detach() }()
	to := theirs.Endpoint(true)
	r.Peer.Endpoint.Store(&to)
	train := (&flow.Flow{Ends: lanetest.Out6}).Train(7, 300)
	r.engine.Transmit(r.Peer, r.Keys, train)
	r.engine.SendKeepalive(r.Peer, r.Keys)
	rx := make([]underlay.Datagrams, 64)
	for i := range rx {
		rx[i].Buf = make([]byte, 65535)
	}
	n, err := theirs.Lane(0).Recv(rx)
	if err != nil || n != 2 {
		t.Fatalf("%d runs arrived (%v), want one and a keepalive", n, err)
	}
	for i := range n {
		for b := rx[i].Buf[:rx[i].N]; len(b) > 0; b = b[min(rx[i].SegSize, len(b)):] {
			r.Conn.Runs = append(r.Conn.Runs, [][]byte{b[:min(rx[i].SegSize, len(b))]})
		}
	}
	plain := r.Sent()
	if len(plain) != 8 || len(plain[7]) != 0 {
		t.Fatalf("%d messages arrived, want 7 and a keepalive", len(plain))
	}
	lanetest.SamePackets(t, lanetest.Unpadded(t, plain[:7]), lanetest.PacketsOf(t, train))
	if _, tx := r.Peer.Traffic(); tx != 7*(368+32)+32 {
		t.Errorf("got %d bytes counted, want %d", tx, 7*(368+32)+32)
	}
}

func TestLockedThreadsEndWithTheirLoops(t *testing.T) {
	threads := func() int {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(tasks)
	}
	device := tuntest.NewFake(tuntest.FakeConfig{Queues: 4})
	e := New(Config{
		Device: device, Control: &lanetest.Control{}, Clock: NewClock(), Rand: rand.Reader,
		OnLoopStart: func(string) func(bool) {
			runtime.LockOSThread()
			return nil
		},
	})
	before := threads()
	const cycles = 20
	for range cycles {
		port, _ := underlaytest.Pipe(4)
		if err := errors.Join(e.Attach(port), e.Detach()); err != nil {
			t.Fatal(err)
		}
	}
	expect.EventuallyNoError(t, "the threads have ended", func() error {
		if n := threads(); n >= before+cycles {
			return fmt.Errorf("%d threads became %d", before, n)
		}
		return nil
	})
}

func TestLoopStartHookRunsOncePerLoop(t *testing.T) {
	var mu sync.Mutex
	begun := map[string]int{}
	device := tuntest.NewFake(tuntest.FakeConfig{Queues: 2})
	e := New(Config{
		Device: device, Control: &lanetest.Control{}, Clock: NewClock(), Rand: rand.Reader,
		OnLoopStart: func(loop string) func(bool) {
			mu.Lock()
			defer mu.Unlock()
			begun[loop]++
			return nil
		},
	})
	e.Start()
	for range 2 {
		port, _ := underlaytest.Pipe(2)
		if err := errors.Join(e.Attach(port), e.Detach()); err != nil {
			t.Fatal(err)
		}
	}
	_ = device.Close()
	e.Wait()
	want := map[string]int{"tx0": 1, "tx1": 1, "rx0": 2, "rx1": 2} // rx: once for each port
	if d := cmp.Diff(want, begun); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// stalled is a port whose SendRun waits until Close.
type stalled struct {
	underlay.Port
	inside, closed chan struct{}
	once           sync.Once
}

func (s *stalled) SendRun(*underlay.Run) error {
	close(s.inside)
	<-s.closed
	return net.ErrClosed
}

func (s *stalled) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.Port.Close()
}

func TestDetachWakesSlowLane(t *testing.T) {
	r := newEngineRig(t)
	ours, _ := underlaytest.Pipe(1)
	p := &stalled{Port: ours, inside: make(chan struct{}), closed: make(chan struct{})}
	if err := r.engine.Attach(p); err != nil {
		t.Fatal(err)
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		r.engine.SendKeepalive(r.Peer, r.Keys)
	}()
	<-p.inside
	if err := r.engine.Detach(); err != nil {
		t.Error(err)
	}
	<-sent
}

// TestStoppedLanesReadNothing stops and starts lanes.
func TestStoppedLanesReadNothing(t *testing.T) {
	e, device := newIdleEngine(2)
	for range 2 {
		e.Start()
		expect.NoError(t, e.Stop())
		expect.NoError(t, device.Inject(1, flow.WithVnetHeader(lanetest.Out4.UDP(nil))))
		bufs, sizes := [][]byte{make([]byte, tun.MaxTrain)}, []int{0}
		if n := device.Queues()[1].TryRead(bufs, sizes); n != 1 {
			t.Fatalf("%d trains wait, want 1", n)
		}
	}
	expect.NoError(t, device.Close())
	e.Start()
	e.Wait()
	if err := e.Stop(); err == nil {
		t.Error("the lanes of a closed device can be stopped")
	}
}

// unstoppable is a TUN that does not stop reading.
type unstoppable struct{ *tuntest.Fake }

func (unstoppable) StopReading() error { return syscall.EIO }

func TestLanesReadOnIfTUNDoesNotStop(t *testing.T) {
	device := unstoppable{tuntest.NewFake(tuntest.FakeConfig{})}
	e := New(Config{Device: device, Control: &lanetest.Control{}, Clock: NewClock(), Rand: rand.Reader})
	e.Start()
	if err := e.Stop(); !errors.Is(err, syscall.EIO) {
		t.Errorf("Stop: error %v, want %v", err, syscall.EIO)
	}
	expect.NoError(t, device.Inject(0, flow.WithVnetHeader(lanetest.Out4.UDP(nil))))
	expect.Eventually(t, "the lane reads a packet to no peer", func() bool { return e.lanes[0].lane.Stats.Drops.Get(drop.TXNoPeer) == 1 })
	expect.NoError(t, device.Close())
	e.Wait()
}

// jointTUN is a TUN of two queues, each of which can be tried only while the other is.
type jointTUN struct{ *tuntest.Fake }

func (j jointTUN) Queues() []tun.Queue {
	queues, both := j.Fake.Queues(), make(chan struct{})
	for i, q := range queues {
		queues[i] = jointQueue{q, both}
	}
	return queues
}

type jointQueue struct {
	tun.Queue
	both chan struct{}
}

func (j jointQueue) TryRead([][]byte, []int) int {
	select {
	case j.both <- struct{}{}:
	case <-j.both:
	}
	return 0
}

// TestLanesSendWaitingPacketsInParallel hangs if a lane waits for another.
func TestLanesSendWaitingPacketsInParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		device := jointTUN{tuntest.NewFake(tuntest.FakeConfig{Queues: 2})}
		e := New(Config{Device: device, Control: &lanetest.Control{}, Clock: NewClock(), Rand: rand.Reader})
		e.Start()
		expect.NoError(t, e.Stop())
		e.SendWaiting()
	})
}

// TestNumberOfWaitingPacketsSentIsBounded has more packets wait than a host can leave in a TUN queue.
func TestNumberOfWaitingPacketsSentIsBounded(t *testing.T) {
	device := tuntest.NewFake(tuntest.FakeConfig{Depth: 3 * send.MaxWaiting})
	e := New(Config{Device: device, Control: &lanetest.Control{}, Clock: NewClock(), Rand: rand.Reader})
	e.Start()
	expect.NoError(t, e.Stop())
	for device.Inject(0, flow.WithVnetHeader(lanetest.Out4.UDP(nil))) == nil {
	}
	e.SendWaiting()
	if n := int(e.lanes[0].lane.Stats.Drops.Get(drop.TXNoPeer)); n < send.MaxWaiting || n > 2*send.MaxWaiting {
		t.Errorf("%d packets were handled, want %d or little more", n, send.MaxWaiting)
	}
}

// TestSecondaryPortTrafficReachesTUN sends messages to a source port instead of the listen port.
func TestSecondaryPortTrafficReachesTUN(t *testing.T) {
	r := newEngineRig(t)
	ours, theirs := underlaytest.Pipe(1)
	source, err := ours.OpenSource(61000)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.engine.Attach(ours); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.engine.Detach() }()
	run, size := r.Seal(lanetest.In4.UDP([]byte("stray")))
	to := ours.Endpoint(false)
	to.Dst = netip.AddrPortFrom(to.Dst.Addr(), ours.Source(source))
	if err := theirs.SendRun(&underlay.Run{To: &to, Parts: [][]byte{run}, SegSize: size, Segments: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.TUN.Receive(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
}
