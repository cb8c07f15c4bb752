// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"crypto/rand"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestPortsMayChangeWhileWorkersRun attaches and detaches ports while the host sends, and ends with trains in flight.
func TestPortsMayChangeWhileWorkersRun(t *testing.T) {
	c, err := workpool.Start(lanetest.ManyWorkers())
	if err != nil {
		t.Fatal(err)
	}
	device := tuntest.NewFake(tuntest.FakeConfig{Depth: 64, Features: tun.Features{TSO: true, USO: true}})
	var now atomic.Int64
	now.Store(int64(time.Hour))
	e := New(Config{
		Device: device, Control: &lanetest.Control{}, Rand: rand.Reader, Pool: c,
		Clock: func() int64 { return now.Add(int64(time.Millisecond)) },
	})
	lanetest.NewOf(t, e.shared, device)
	e.Start()
	var host sync.WaitGroup
	train := (&flow.Flow{Ends: lanetest.Out4}).Train(40, 1380)
	var ended atomic.Bool
	host.Go(func() {
		for !ended.Load() {
			if device.Inject(0, train) != nil {
				runtime.Gosched()
			}
		}
	})
	for range 20 {
		port, far := underlaytest.Pipe(1)
		if err := e.Attach(port); err != nil {
			t.Fatal(err)
		}
		before := e.Stats().Lanes[0].TxRuns
		expect.Eventually(t, "the lane has sent 20 runs", func() bool { return e.Stats().Lanes[0].TxRuns > before+20 })
		if err := e.Detach(); err != nil {
			t.Fatal(err)
		}
		_ = far.Close()
	}
	ended.Store(true)
	_ = device.Close()
	e.Wait()
	c.Close()
	host.Wait()
	if s := e.lanes[0].lane.SealJobs.Stats(); s.Done+s.ByLane != s.Submitted {
		t.Errorf("got %+v", s)
	}
}
