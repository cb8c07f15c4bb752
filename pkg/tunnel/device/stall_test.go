// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"bytes"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// gatedPort is a port on which lanes do not return from Send while its gate is closed.
type gatedPort struct {
	underlay.Port
	gate *gate
}

type gate struct {
	mu     sync.Mutex
	opened chan struct{} // nil while it is open
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.opened = make(chan struct{})
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.opened)
	g.opened = nil
}

func (g *gate) pass() {
	g.mu.Lock()
	opened := g.opened
	g.mu.Unlock()
	if opened != nil {
		<-opened
	}
}

func (p gatedPort) Lane(i int) underlay.Lane { return gatedLane{p.Port.Lane(i), p.gate} }

type gatedLane struct {
	underlay.Lane
	gate *gate
}

func (l gatedLane) Send(runs []underlay.Run) int {
	l.gate.pass()
	return l.Lane.Send(runs)
}

func stalls(h *devicetest.Host) config.StallReport { return h.Stats().(device.Stats).Stalls }

// stallsAfter reads the report each second, and returns the last one.
func stallsAfter(h *devicetest.Host, seconds int) (r config.StallReport) {
	for range seconds {
		time.Sleep(time.Second)
		r = stalls(h)
	}
	return r
}

func TestLaneThatDoesNotReturnIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var g gate
		lan := devicetest.NewLAN(nil)
		a := lan.Host(t, 1, devicetest.Options{
			Log: slog.New(slog.NewTextHandler(&log, nil)), WrapPort: func(p underlay.Port) underlay.Port { return gatedPort{p, &g} },
		})
		b := lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		talk(t, a, b)
		stalls(a)
		g.close()
		a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
		if r := stallsAfter(a, 9); r.Transmit != 0 || len(r.Lanes) != 0 {
			t.Fatalf("got %+v before the limit", r)
		}
		if r := stallsAfter(a, 5); r.Transmit != 1 || !slices.Equal(r.Lanes, []string{"tx0"}) {
			t.Errorf("got %+v, want one stall, of tx0", r)
		}
		if got := log.String(); strings.Count(got, "lane is stuck in a batch") != 1 || !strings.Contains(got, " lane=0 direction=transmit\n") {
			t.Errorf("got log %q, want one line about the stuck loop", got)
		}
		g.open()
		time.Sleep(2 * time.Second)
		if r := stalls(a); r.Transmit != 1 || len(r.Lanes) != 0 {
			t.Errorf("got %+v after the lane went on, want one stall and none now", r)
		}
	})
}

// fullPort is a port whose send buffers have room for so many runs of data. Nothing signals that there is more.
type fullPort struct {
	underlay.Port
	room *atomic.Int64
}

func (p fullPort) Lane(i int) underlay.Lane { return fullLane{p.Port.Lane(i), p.room} }

type fullLane struct {
	underlay.Lane
	room *atomic.Int64
}

// BeginWait implements underlay.Lane. It pauses, as the wait for room of a real TUN queue does: that of the fake one is much shorter.
func (l fullLane) BeginWait() bool {
	time.Sleep(99 * time.Millisecond)
	return l.Lane.BeginWait()
}

func (l fullLane) Send(runs []underlay.Run) (failed int) {
	for i := range runs {
		if l.room.Add(-1) < 0 {
			l.room.Add(1)
			runs[i].Err = underlay.ErrSendBufferFull
			failed++
			continue
		}
		failed += l.Lane.Send(runs[i : i+1])
	}
	return failed
}

// fullPair returns two hosts with a session. The first has a fullPort with room for everything.
func fullPair(t *testing.T, log *slog.Logger) (a, b *devicetest.Host, room *atomic.Int64) {
	t.Helper()
	room = new(atomic.Int64)
	room.Store(1 << 30)
	lan := devicetest.NewLAN(nil)
	a = lan.Host(t, 1, devicetest.Options{Log: log, WrapPort: func(p underlay.Port) underlay.Port { return fullPort{p, room} }})
	b = lan.Host(t, 2, devicetest.Options{})
	devicetest.Connect(a, b)
	talk(t, a, b)
	stalls(a)
	return a, b, room
}

func TestSendBufferThatStaysFullIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		a, b, room := fullPair(t, slog.New(slog.NewTextHandler(&log, nil)))
		room.Store(0)
		a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
		if r := stallsAfter(a, 59); r.Queued != 0 || len(r.Queues) != 0 {
			t.Fatalf("got %+v before the limit", r)
		}
		if r := stallsAfter(a, 5); r.Queued != 1 || !slices.Equal(r.Queues, []int{0}) || r.Transmit != 0 || len(r.Lanes) != 0 {
			t.Errorf("got %+v, want one stall, of the queue of lane 0", r)
		}
		if got := log.String(); strings.Count(got, "send buffer has been full") != 1 || !strings.Contains(got, " lane=0\n") {
			t.Errorf("got log %q, want one line about the send buffer", got)
		}
		room.Store(1 << 30)
		if got := b.Next(); len(got) == 0 {
			t.Error("the packet did not arrive")
		}
		time.Sleep(2 * time.Second)
		if r := stalls(a); r.Queued != 1 || len(r.Queues) != 0 {
			t.Errorf("got %+v once there is room, want one stall and none now", r)
		}
	})
}

// TestSlowSendBufferIsNoStall: it has room for one run in 40 s, and more waits all the time.
func TestSlowSendBufferIsNoStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, room := fullPair(t, nil)
		room.Store(0)
		packet := flow.WithVnetHeader(a.To(b, 1, false).UDP(nil))
		a.Send(packet)
		for range 3 {
			a.Send(packet)
			if r := stallsAfter(a, 40); r.Queued != 0 || len(r.Queues) != 0 {
				t.Fatalf("got %+v of a queue that moves", r)
			}
			room.Store(1)
			if got := b.Next(); len(got) == 0 {
				t.Fatal("the packet did not arrive")
			}
		}
	})
}

// TestPacketsWithoutHandshakeAreRestarted: the handshake for which a packet waits is lost, as by a lost wake-up.
func TestPacketsWithoutHandshakeAreRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var silent atomic.Bool
		lan := devicetest.NewLAN(func(_, _ netip.AddrPort, datagram []byte) underlaytest.Verdict {
			if kind, _ := wire.Classify(datagram); kind == wire.TypeResponse && silent.Load() {
				return underlaytest.Drop
			}
			return underlaytest.Deliver
		})
		var log bytes.Buffer
		a, b := lan.Host(t, 1, devicetest.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		silent.Store(true)
		a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
		if r := stallsAfter(a, 20); r.Staged != 0 { // the handshake is repeated
			t.Fatalf("got %+v while a handshake is in flight", r)
		}
		silent.Store(false)
		a.PeerOf(b.Public()).LoseHandshake()
		if r := stallsAfter(a, 4); r.Staged != 1 {
			t.Errorf("got %+v, want one stall", r)
		}
		if got := b.Next(); len(got) == 0 {
			t.Error("the packet did not arrive")
		}
		synctest.Wait()                                                              // for all that log
		if n := strings.Count(log.String(), "packets to the peer stalled"); n != 1 { // the simulator looks for this text
			t.Errorf("got log %q, want one line about the packets", log.String())
		}
	})
}

// TestRetriedHandshakeIsNoStall: another private key ends the handshake in flight, and its retry is due within seconds.
func TestRetriedHandshakeIsNoStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(func(_, _ netip.AddrPort, _ []byte) underlaytest.Verdict { return underlaytest.Drop })
		a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
		time.Sleep(time.Second)
		key := newKey(t)
		a.Apply(config.Device{PrivateKey: &key})
		if r := stallsAfter(a, 10); r.Staged != 0 {
			t.Fatalf("got %+v while a retry is due", r)
		}
	})
}
