// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	engines "github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/test/expect"
)

// heldPort is a port whose lanes receive nothing while it is held, so that datagrams wait in their rings.
type heldPort struct {
	*Port
	mu sync.RWMutex // countResources for writing by the test
}

func (g *heldPort) Lane(i int) underlay.Lane { return &gatedLane{g.Port.Lane(i), g} }

type gatedLane struct {
	underlay.Lane
	gate *heldPort
}

func (l *gatedLane) Recv(rx []underlay.Datagrams) (int, error) {
	l.gate.mu.RLock()
	defer l.gate.mu.RUnlock()
	// This must not wait, otherwise the lock could not be taken.
	if n := l.Lane.TryRecv(rx); n > 0 {
		return n, nil
	}
	if l.gate.closed.Load() {
		return 0, net.ErrClosed
	}
	time.Sleep(100 * time.Microsecond)
	return 0, nil
}

func (l *gatedLane) TryRecv(rx []underlay.Datagrams) int {
	if !l.gate.mu.TryRLock() {
		return 0
	}
	defer l.gate.mu.RUnlock()
	return l.Lane.TryRecv(rx)
}

func (g *heldPort) whileShut(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

// TestBackloggedTrainsAreOfferedToWorkers lets bursts of one flow wait in the ring of a lane. Each burst is several
// elements for the engine, so the lane has a backlog on every machine. The scheduler decides whether a worker begins
// before the lane reaches an element; the result is the same either way (package engine's tests).
func TestBackloggedTrainsAreOfferedToWorkers(t *testing.T) {
	const burst, size = 512, 1200
	workers, err := workpool.Start(workpool.Config{Workers: 1})
	expect.NoError(t, err)
	t.Cleanup(workers.Close)
	l := &tunnel{pair: newPair(t, 1)}
	g := &heldPort{}
	l.workers[1] = workers
	l.wrap[1] = func(p *Port) underlay.Port { g.Port = p; return g }
	l.startBoth(tunnelMode{viaXDP: [2]bool{true, true}, mode: xsk.Copy})
	l.awaitXDP()
	var from net.PacketConn
	expect.NoError(t, l.hosts[0].Do(func() (err error) {
		from, err = net.ListenPacket("udp", netip.AddrPortFrom(inner4[0].Addr(), 0).String())
		return err
	}))
	t.Cleanup(func() { from.Close() })
	to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(inner4[1].Addr(), 9))
	lane := func() (received, offered uint64) {
		s := l.devices[1].Stats().(engines.Stats).Lanes[0]
		return s.RxPackets, s.RxWorkers.Submitted
	}
	expect.Eventually(t, "an offer", func() bool {
		before, _ := lane()
		g.whileShut(func() {
			for range burst {
				_, err := from.WriteTo(make([]byte, size), to)
				expect.NoError(t, err)
			}
			l.awaitSilence(1)
		})
		expect.Eventually(t, "the burst", func() bool {
			now, _ := lane()
			return now > before
		})
		_, offered := lane()
		return offered > 0
	})
	s := l.devices[1].Stats().(engines.Stats).Lanes[0]
	t.Logf("%d packets, %+v", s.RxPackets, s.RxWorkers)
}

// awaitSilence waits until an end receives no more data messages.
func (l *tunnel) awaitSilence(end int) {
	l.Helper()
	program := l.ports[end].supervisor.config.Program.(*programs.Classify)
	last := uint64(0)
	for unchanged := 0; unchanged < 5; time.Sleep(time.Millisecond) {
		c, err := program.Counters()
		expect.NoError(l.TB, err)
		sum := uint64(0)
		for _, n := range c.Events {
			sum += n
		}
		if unchanged++; sum != last {
			unchanged, last = 0, sum
		}
	}
}
