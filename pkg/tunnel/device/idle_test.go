// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
)

// watchedClock counts the clock reads of a device, which does nothing without one. Tests may advance it.
type watchedClock struct {
	start time.Time
	reads atomic.Int64
	ahead atomic.Int64
}

func newWatchedClock() *watchedClock { return &watchedClock{start: time.Now()} }

func (c *watchedClock) now() int64 {
	c.reads.Add(1)
	return int64(time.Since(c.start)) + 1 + c.ahead.Load()
}

// wantNoReads proves that nothing looks at the clock for so long.
func (c *watchedClock) wantNoReads(t *testing.T, d time.Duration) {
	t.Helper()
	synctest.Wait()
	before := c.reads.Load()
	time.Sleep(d)
	synctest.Wait()
	if n := c.reads.Load() - before; n != 0 {
		t.Errorf("an idle device looked at the clock %d times in %v", n, d)
	}
}

// wantGoroutines proves that there are not more: the runtime has some of its own at times, for finalizers.
func wantGoroutines(t *testing.T, most int) {
	t.Helper()
	most += 3 // timers of engines of other tests, which run in real time
	n := runtime.NumGoroutine()
	for tries := 0; n > most && tries < 1000; tries++ {
		time.Sleep(time.Second)
		n = runtime.NumGoroutine()
	}
	if n > most {
		t.Errorf("%d goroutines, want at most %d", n, most)
	}
}

// strangers are peers that never say anything.
func strangers(n int) (d config.Device) {
	for i := range n {
		d.Peers = append(d.Peers, config.Peer{
			PublicKey: noise.PublicKey{9, byte(i), byte(i >> 8)},
			Endpoint:  &config.Endpoint{AddrPort: netip.MustParseAddrPort("192.0.2.254:51820")},
		})
	}
	return d
}

func TestIdlePeersHaveNoTimerOrGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := newWatchedClock()
		h := devicetest.NewLAN(nil).Host(t, 1, devicetest.Options{Clock: clock.now})
		goroutines := runtime.NumGoroutine()
		h.Apply(strangers(1000))
		clock.wantNoReads(t, 24*time.Hour)
		if n := h.Timers(); n != 0 {
			t.Errorf("%d timers are set", n)
		}
		wantGoroutines(t, goroutines)
	})
}

// TestUnusedSessionWakesOnceForErasure checks that handshake timers stop after some seconds.
func TestUnusedSessionWakesOnceForErasure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := newWatchedClock()
		a, b := devicetest.Pair(t, devicetest.Options{Clock: clock.now})
		goroutines := runtime.NumGoroutine()
		talk(t, a, b)
		time.Sleep(30 * time.Second)
		clock.wantNoReads(t, 500*time.Second)
		if a.Timers() != 1 || b.Timers() != 1 {
			t.Errorf("%d and %d timers are set, want 1 and 1", a.Timers(), b.Timers())
		}
		time.Sleep(20 * time.Second)
		clock.wantNoReads(t, 24*time.Hour)
		if n := a.Indices() + b.Indices() + a.Timers() + b.Timers(); n != 0 {
			t.Errorf("%d indices and timers are left", n)
		}
		wantGoroutines(t, goroutines)
	})
}

// TestClientOfSilentServerWakesForKeepalives: a server that never sends first leaves open whether it would send hellos.
func TestClientOfSilentServerWakesForKeepalives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := newWatchedClock()
		lan := devicetest.NewLAN(nil)
		client := lan.Host(t, 1, devicetest.Options{Clock: clock.now})
		server := lan.Host(t, 2, devicetest.Options{})
		off, every := config.SpreadOff, uint16(25)
		client.Apply(config.Device{Settings: config.Settings{Spread: &off}})
		server.Apply(config.Device{Settings: config.Settings{Spread: &off}, Peers: []config.Peer{client.AsPeer(false)}})
		p := server.AsPeer(false)
		p.Keepalive = &every
		client.Apply(config.Device{Peers: []config.Peer{p}})
		time.Sleep(30 * time.Second)
		wakeups := 0
		for range 750 {
			before := clock.reads.Load()
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			if clock.reads.Load() != before {
				wakeups++
			}
		}
		if wakeups > 5 {
			t.Errorf("the client woke %d times in 75 s, want 3 for keepalives and at most 2 more", wakeups)
		}
	})
}

// TestKeepalivesOfManyPeersShareWakeups: peers that were configured one after the other are soon due together.
func TestKeepalivesOfManyPeersShareWakeups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const peers, every = 20, 25
		l := &timeline{}
		l.lan = devicetest.NewLAN(l.filter)
		hub := l.lan.Host(t, 1, devicetest.Options{})
		for i := range peers {
			h := l.lan.Host(t, byte(2+i), devicetest.Options{})
			h.Apply(config.Device{Peers: []config.Peer{hub.AsPeer(false)}})
			p, seconds := h.AsPeer(false), uint16(every)
			p.Keepalive = &seconds
			hub.Apply(config.Device{Peers: []config.Peer{p}})
			time.Sleep(7 * time.Millisecond)
		}
		time.Sleep(2 * every * time.Second)
		l.forget()
		time.Sleep(4 * every * time.Second)
		sent := l.take(1, keepalives)
		moments := map[time.Time]bool{}
		for _, at := range sent {
			moments[at] = true
		}
		if len(sent) < 3*peers || len(moments) > len(sent)/5 {
			t.Errorf("%d keepalives at %d moments", len(sent), len(moments))
		}
	})
}

// TestKeysAreErasedAfterSuspend: the machine slept, and Go's timers with it.
func TestKeysAreErasedAfterSuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := newWatchedClock()
		a, b := devicetest.Pair(t, devicetest.Options{Clock: clock.now})
		talk(t, a, b)
		time.Sleep(30 * time.Second)
		clock.ahead.Add(int64(time.Hour))
		for _, h := range []*devicetest.Host{a, b} {
			h.ClockJumped()
			synctest.Wait()
			if n := h.Indices(); n != 0 {
				t.Errorf("host %d has %d indices left", h.N, n)
			}
		}
	})
}

func TestDistantTimersAreCoalesced(t *testing.T) {
	const second = int64(time.Second)
	for _, tt := range []struct{ now, wait int64 }{
		{1, 0},
		{1, -second},
		{12345, 5 * second},
		{777, 5*second + 334_000_000},
		{3 * second, 8 * second},
		{1, 10 * second},
		{99999999, 25 * second},
		{1 << 40, 540 * second},
	} {
		at := tt.now + tt.wait
		got := device.Coalesced(tt.now, at)
		switch far := tt.wait >= 8*second; {
		case !far && got != at:
			t.Errorf("%d ns ahead: %d ns late", tt.wait, got-at)
		case far && (got < at || got-at >= device.TimerSlack || got%device.TimerSlack != 0):
			t.Errorf("%d ns ahead: %d ns late, at %d", tt.wait, got-at, got)
		}
	}
}
