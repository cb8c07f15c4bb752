// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
	"github.com/ropewalk/ropewalk/test/expect"
)

// slowPort is a port whose sends wait while it is held, and whose end may take a second. Nobody may wait for a lock of the device meanwhile, since
// time stands still in a bubble then.
type slowPort struct {
	underlay.Port
	held      *atomic.Pointer[chan struct{}] // nil while it is not held
	slowClose *atomic.Bool
}

func (p slowPort) Lane(i int) underlay.Lane { return slowSends{p.Port.Lane(i), p.held} }

func (p slowPort) Close() error {
	if p.slowClose.Load() {
		time.Sleep(time.Second)
	}
	return p.Port.Close()
}

type slowSends struct {
	underlay.Lane
	held *atomic.Pointer[chan struct{}]
}

func (s slowSends) Send(runs []underlay.Run) int {
	if wait := s.held.Load(); wait != nil {
		<-*wait
	}
	return s.Lane.Send(runs)
}

// slowPair returns two hosts with a session. The first takes half a second to open a port, and is the owner of slow.
func slowPair(t *testing.T) (a, b *devicetest.Host, slow slowPort) {
	t.Helper()
	lan := devicetest.NewLAN(nil)
	slow = slowPort{held: new(atomic.Pointer[chan struct{}]), slowClose: new(atomic.Bool)}
	a = lan.Host(t, 1, devicetest.Options{WrapPort: func(p underlay.Port) underlay.Port {
		time.Sleep(time.Second / 2)
		return slowPort{p, slow.held, slow.slowClose}
	}})
	b = lan.Host(t, 2, devicetest.Options{})
	devicetest.Connect(a, b)
	talk(t, a, b)
	return a, b, slow
}

// sendText sends a packet with the given payload from a to b.
func sendText(a, b *devicetest.Host, text string) {
	a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP([]byte(text))))
}

// wantNext checks that packets with these payloads arrive at b, in this order, and that a has dropped none.
func wantNext(t *testing.T, a, b *devicetest.Host, texts ...string) {
	t.Helper()
	for got := [][]byte(nil); len(texts) > 0; got, texts = got[1:], texts[1:] {
		if len(got) == 0 {
			got = b.Next()
		}
		if !bytes.HasSuffix(got[0], []byte(texts[0])) {
			t.Errorf("got % x, want %s", got[0], texts[0])
		}
	}
	if n := a.Drops(drop.TXDown); n != 0 {
		t.Errorf("%d packets were dropped because the interface is down", n)
	}
}

// TestPacketsWaitUntilPortIsOpen sends as soon as the interface is up, and while the port is being opened.
func TestPacketsWaitUntilPortIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := slowPair(t)
		for range 3 {
			down(a)
			a.TUN.SetUp(true)
			sendText(a, b, "first")
			time.Sleep(time.Second / 4)
			sendText(a, b, "second")
			wantNext(t, a, b, "first", "second")
			time.Sleep(time.Minute) // a peer accepts one initiation in 50 ms
		}
	})
}

// TestPacketsBeforeLinkDownAreSent has one packet in a lane and one in the TUN when the interface goes down.
func TestPacketsBeforeLinkDownAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, slow := slowPair(t)
		release := make(chan struct{})
		slow.held.Store(&release)
		sendText(a, b, "read")
		synctest.Wait()
		sendText(a, b, "waits")
		a.TUN.SetUp(false)
		synctest.Wait()
		close(release)
		wantNext(t, a, b, "read", "waits")
	})
}

// TestPacketsWaitWhilePortChanges sends while the old port is being closed.
func TestPacketsWaitWhilePortChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, slow := slowPair(t)
		time.Sleep(time.Minute) // no other message is in flight
		slow.slowClose.Store(true)
		applied := make(chan error)
		go func() {
			port := uint16(devicetest.ListenPort + 1)
			applied <- a.Configure(config.Device{ListenPort: &port})
		}()
		time.Sleep(time.Second) // the new port is open after half a second, and the old one closed a second later
		sendText(a, b, "waits")
		expect.NoError(t, <-applied)
		slow.slowClose.Store(false)
		wantNext(t, a, b, "waits")
	})
}

// TestPortChangeLeavesWaitingPackets has one packet in a lane and one in the TUN when the port changes. The change does not wait until the latter
// has left.
func TestPortChangeLeavesWaitingPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, slow := slowPair(t)
		time.Sleep(time.Minute) // no other message is in flight
		first, second := make(chan struct{}), make(chan struct{})
		slow.held.Store(&first)
		sendText(a, b, "read")
		synctest.Wait()
		sendText(a, b, "waits")
		applied := make(chan error, 1)
		go func() {
			port := uint16(devicetest.ListenPort + 1)
			applied <- a.Configure(config.Device{ListenPort: &port})
		}()
		time.Sleep(time.Second) // until the new port is open
		slow.held.Store(&second)
		close(first)
		synctest.Wait()
		if len(applied) == 0 {
			t.Error("the port does not change while a packet in the TUN has not left")
		}
		close(second)
		expect.NoError(t, <-applied)
		wantNext(t, a, b, "read", "waits")
	})
}

// TestPacketsWithoutPortAreDropped has a taken port when the interface comes up: nobody knows when it will be free.
func TestPacketsWithoutPortAreDropped(t *testing.T) {
	var log lockedText
	lan := devicetest.NewLAN(nil)
	a, b := lan.Host(t, 1, devicetest.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}), lan.Host(t, 2, devicetest.Options{})
	devicetest.Connect(a, b)
	down(a)
	v4, v6 := devicetest.Addresses(1)
	other, err := lan.Open(v4, v6, devicetest.ListenPort, 1)
	expect.NoError(t, err)
	a.TUN.SetUp(true)
	a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
	a.Await("the packet is dropped", func() bool { return a.Drops(drop.TXDown) == 1 })
	if text := log.String(); !strings.Contains(text, "opening the listen port failed, no traffic until") {
		t.Errorf("the log has no reason:\n%s", text)
	}
	expect.NoError(t, other.Close())
	port := uint16(devicetest.ListenPort)
	a.Apply(config.Device{ListenPort: &port})
	carries(t, a, b, false, 100)
}

// TestStagedPacketsSurviveShortLinkDown stages a packet before the device knows that the link went down and up.
func TestStagedPacketsSurviveShortLinkDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		down(b)
		sendText(a, b, "staged")
		a.Await("the packet is staged", func() bool { return a.StagedBytes() > 0 })
		down(a)
		a.TUN.SetUp(true)
		b.TUN.SetUp(true)
		wantNext(t, a, b, "staged")
	})
}

// TestStagedPacketsExpireWhileDown: a link that stays down sends nothing old when it comes up.
func TestStagedPacketsExpireWhileDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		down(b)
		sendText(a, b, "staged")
		a.Await("the packet is staged", func() bool { return a.StagedBytes() > 0 })
		down(a)
		time.Sleep(2 * time.Second)
		if n := a.Drops(drop.TXStagedExpired); n != 1 || a.StagedBytes() != 0 {
			t.Errorf("%d packets were dropped, %d bytes are staged", n, a.StagedBytes())
		}
	})
}
