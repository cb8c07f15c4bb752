// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// threadCPU returns the CPU time of the calling thread, in ns.
func threadCPU() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) // all kernels support it
	return ts.Nano()
}

// clockCost returns the CPU time of a call of threadCPU, in ns.
func clockCost() int64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const calls = 20_000
	begin := threadCPU()
	for range calls {
		threadCPU()
	}
	return (threadCPU() - begin) / calls
}

// laneTimer measures one of a lane's two goroutines. It takes the CPU time of its calls of the TUN
// and of the underlay, and the time between these calls, which is the engine's.
type laneTimer struct {
	clock    int64 // ns that reading the clock takes
	last     int64 // when the last call returned
	engineNS atomic.Int64
	in, out  callTimer
}

// callTimer measures one kind of call.
type callTimer struct{ ns, elements, packets, bytes atomic.Int64 }

// enter begins a call. It locks the goroutine to its thread, whose CPU time is measured.
func (l *laneTimer) enter() int64 {
	if l.last == 0 {
		runtime.LockOSThread()
	}
	now := threadCPU()
	if l.last != 0 {
		l.engineNS.Add(max(now-l.last-l.clock, 0))
	}
	return now
}

func (l *laneTimer) leave(e *callTimer, entered int64, elements, packets, bytes int) {
	now := threadCPU()
	e.ns.Add(max(now-entered-l.clock, 0))
	e.elements.Add(int64(elements))
	e.packets.Add(int64(packets))
	e.bytes.Add(int64(bytes))
	l.last = now
}

// timedTUN is a TUN with one queue, whose reads tx measures and whose writes rx measures.
type timedTUN struct {
	tun.Device
	tx, rx *laneTimer
}

// Queues implements tun.Device.
func (t *timedTUN) Queues() []tun.Queue { return []tun.Queue{timedQueue{t.Device.Queues()[0], t}} }

type timedQueue struct {
	tun.Queue
	t *timedTUN
}

// Read implements tun.Queue.
func (q timedQueue) Read(bufs [][]byte, sizes []int) (int, error) {
	began := q.t.tx.enter()
	n, err := q.Queue.Read(bufs, sizes)
	bytes := 0
	for _, s := range sizes[:n] {
		bytes += s - vnetHdrLen
	}
	q.t.tx.leave(&q.t.tx.in, began, n, 0, bytes)
	return n, err
}

// Write implements tun.Queue.
func (q timedQueue) Write(parts [][]byte) error {
	began := q.t.rx.enter()
	err := q.Queue.Write(parts)
	bytes := -vnetHdrLen
	for _, p := range parts {
		bytes += len(p)
	}
	q.t.rx.leave(&q.t.rx.out, began, 1, max(len(parts)-1, 1), bytes)
	return err
}

// timedPort is a port with one lane, whose sends tx measures and whose receives rx measures.
type timedPort struct {
	underlay.Port
	tx, rx *laneTimer
}

// Lane implements underlay.Port.
func (p *timedPort) Lane(i int) underlay.Lane { return timedLane{p.Port.Lane(i), p} }

type timedLane struct {
	underlay.Lane
	p *timedPort
}

// Recv implements underlay.Receiver.
func (l timedLane) Recv(rx []underlay.Datagrams) (int, error) {
	began := l.p.rx.enter()
	n, err := l.Lane.Recv(rx)
	l.received(began, rx[:n])
	return n, err
}

// TryRecv implements underlay.Lane.
func (l timedLane) TryRecv(rx []underlay.Datagrams) int {
	began := l.p.rx.enter()
	n := l.Lane.TryRecv(rx)
	l.received(began, rx[:n])
	return n
}

func (l timedLane) received(began int64, rx []underlay.Datagrams) {
	packets, bytes := 0, 0
	for i := range rx {
		bytes += rx[i].N
		packets += (rx[i].N + rx[i].SegSize - 1) / max(rx[i].SegSize, 1)
	}
	l.p.rx.leave(&l.p.rx.in, began, len(rx), packets, bytes)
}

// Send implements underlay.Lane.
func (l timedLane) Send(runs []underlay.Run) int {
	began := l.p.tx.enter()
	failed := l.Lane.Send(runs)
	packets, bytes := 0, 0
	for i := range runs {
		packets += runs[i].Segments
		for _, part := range runs[i].Parts {
			bytes += len(part)
		}
	}
	l.p.tx.leave(&l.p.tx.out, began, len(runs), packets, bytes)
	return failed
}
