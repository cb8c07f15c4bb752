// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"fmt"
	"net"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// endless is an underlay.Lane that always has trains of a peer while few wait in the lane, until it has delivered count.
type endless struct {
	underlay.Lane
	supply *supply
	rx     *Receiver
	count  int // still to deliver
	next   int // in supply
	taken  int
}

// window is the largest number of trains that the lane has received and not published.
const window = 16

// batchTrains is the number of trains that one receive call finds.
const batchTrains = 4

// TryRecv implements underlay.Lane. Like the kernel, it copies.
func (e *endless) TryRecv(rx []underlay.Datagrams) (n int) {
	if e.next == len(e.supply.trains) {
		return 0 // the next round has other keys
	}
	for ; n < batchTrains && e.next < len(e.supply.trains) && e.count > 0 && e.taken-int(e.rx.lane.Stats.Rx.Packets.Load())/45 < window; n++ {
		rx[n].N, rx[n].SegSize, rx[n].From = copy(rx[n].Buf, e.supply.trains[e.next]), e.supply.layout.Stride(), lanetest.There
		e.next++
		e.count--
		e.taken++
	}
	return n
}

// Recv implements underlay.Lane. The lane calls it when nothing waits.
func (e *endless) Recv(rx []underlay.Datagrams) (int, error) {
	if e.count == 0 {
		return 0, net.ErrClosed
	}
	if e.next == len(e.supply.trains) {
		e.next = 0
		e.supply.session.Keys.Store(e.supply.rig.Keypair(e.supply.keys))
	}
	n := e.TryRecv(rx[:batchTrains])
	m := e.TryRecv(rx[n:])
	return n + m, nil
}

// copies is a TUN queue that copies what is written, as the kernel does.
type copies struct {
	tun.Queue
	buf [1 << 17]byte
}

// Write implements tun.Queue.
func (c *copies) Write(parts [][]byte) error {
	n := 0
	for _, p := range parts {
		n += copy(c.buf[n:], p)
	}
	return nil
}

// BenchmarkElephantLane receives one flow. lane-ns is the CPU time of the lane's thread per train.
func BenchmarkElephantLane(b *testing.B) {
	for _, workers := range []int{0, 1, 2} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			before := runtime.GOMAXPROCS(runtime.NumCPU() + 2)
			b.Cleanup(func() { runtime.GOMAXPROCS(before) })
			r := newRigWithWorkers(b, workpool.Config{Workers: workers, BusyPoll: true})
			r.Shared.Clock = lane.NewClock()
			benchmarkLane(b, r)
		})
	}
}

// benchmarkLane receives b.N trains.
func benchmarkLane(b *testing.B, r *rig) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l := r.Lane
	l.Queue = &copies{}
	conn := &endless{supply: newSupply(b, r, 1024), rx: r.rx, count: b.N}
	conn.supply.session.Keys.Store(r.Keypair(conn.supply.keys))
	b.ResetTimer()
	began := threadTime()
	r.rx.Run(conn, conn.TryRecv, nil)
	b.ReportMetric(float64(threadTime()-began)/float64(b.N), "lane-ns")
	lanetest.ReportWorkers(b, l.OpenJobs.Stats())
	b.ReportMetric(float64(r.AllDrops())/float64(b.N), "drops/op") // CoDel drops while others use the core
	if l.Stats.Rx.Packets.Load() == 0 {
		b.Fatal("nothing was received")
	}
}

// threadTime returns the CPU time of the thread in ns.
func threadTime() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return ts.Nano()
}
