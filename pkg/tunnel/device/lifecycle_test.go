// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
	"github.com/ropewalk/ropewalk/test/expect"
)

// down takes a host's interface down and waits until the device has followed.
func down(h *devicetest.Host) {
	h.TUN.SetUp(false)
	h.Await("it is down", func() bool { return !h.Up() })
	h.Status() // waits for the rest: the port closed, the sessions forgotten
}

func TestDownErasesSessionsAndUpStartsFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		talk(t, a, b)
		down(a)
		if n := a.Indices(); n != 0 {
			t.Errorf("%d receiver indices are left", n)
		}
		a.TUN.SetUp(true)
		a.Await("it is up", a.Up)
		if port := a.Status().ListenPort; port != devicetest.ListenPort {
			t.Errorf("listens at %d, want the port it had", port)
		}
		carries(t, a, b, false, 100)
	})
}

// TestUpRenewsSessionsWithoutLocalTraffic: only the other end has something to send, with a session that this end has erased.
func TestUpRenewsSessionsWithoutLocalTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := devicetest.Pair(t, devicetest.Options{})
		talk(t, a, b)
		down(a)
		before := time.Now()
		a.TUN.SetUp(true)
		a.Await("it is up", a.Up)
		a.Await("a session", func() bool { return !a.Status().Peers[0].LastHandshake.IsZero() && a.Indices() > 0 })
		time.Sleep(100 * time.Millisecond)
		carries(t, b, a, false, 100)
		if waited := time.Since(before); waited > time.Second {
			t.Errorf("the session was renewed after %v", waited)
		}
	})
}

// TestUpWithoutSessionIsSilent: no peer had a session, so none is started.
func TestUpWithoutSessionIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := devicetest.Pair(t, devicetest.Options{})
		down(a)
		a.TUN.SetUp(true)
		a.Await("it is up", a.Up)
		time.Sleep(10 * time.Second)
		if n := a.Indices(); n != 0 {
			t.Errorf("%d receiver indices are in use, want 0", n)
		}
	})
}

func TestCopiedMachineErasesKeysAndRenewsSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := &messages{}
		lan := devicetest.NewLAN(seen.filter)
		a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		talk(t, a, b)
		time.Sleep(time.Second) // a peer accepts one initiation in 50 ms
		initiations, old := seen.sent(1, wire.TypeInitiation), seen.latestFrom(a.Outside(false).Addr(), wire.TypeData)
		a.MachineCopied()
		time.Sleep(time.Second)
		if n := seen.sent(1, wire.TypeInitiation) - initiations; n != 1 {
			t.Errorf("%d initiations were sent, want 1", n)
		}
		talk(t, b, a)
		if got := seen.latestFrom(a.Outside(false).Addr(), wire.TypeData); wire.ReceiverIndex(got) == wire.ReceiverIndex(old) {
			t.Error("data was sent with the session of before")
		}
	})
}

func TestResumedMachineErasesKeysAndRenewsLiveSessions(t *testing.T) {
	for _, slept := range []time.Duration{time.Second, 4 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			seen := &messages{}
			lan := devicetest.NewLAN(seen.filter)
			a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
			devicetest.Connect(a, b)
			talk(t, a, b)
			time.Sleep(slept)
			initiations, old := seen.sent(1, wire.TypeInitiation), seen.latestFrom(a.Outside(false).Addr(), wire.TypeData)
			live := slept < time.Duration(peer.RejectAfterTime)
			a.MachineResumed()
			a.ClockJumped()
			time.Sleep(time.Second)
			if n := seen.sent(1, wire.TypeInitiation) - initiations; (n == 1) != live || n > 1 {
				t.Errorf("after %v %d initiations were sent, the session is live: %v", slept, n, live)
			}
			if n := a.Indices(); (n == 1) != live {
				t.Errorf("after %v %d receiver indices are in use, the session is live: %v", slept, n, live)
			}
			talk(t, a, b)
			if got := seen.latestFrom(a.Outside(false).Addr(), wire.TypeData); wire.ReceiverIndex(got) == wire.ReceiverIndex(old) {
				t.Errorf("after %v data was sent with the session of before", slept)
			}
		})
	}
}

// TestAllKeysOfCopiedMachineAreErasedFirst: handshakes with thousands of peers take seconds, in which data would leave with copied keys.
func TestAllKeysOfCopiedMachineAreErasedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var copied atomic.Pointer[device.Device] // set once it is to be watched
		var used atomic.Int64
		lan := devicetest.NewLAN(func(_, _ netip.AddrPort, datagram []byte) underlaytest.Verdict {
			if kind, _ := wire.Classify(datagram); copied.Load() != nil && kind == wire.TypeInitiation {
				used.CompareAndSwap(0, int64(copied.Load().Indices()))
			}
			return underlaytest.Deliver
		})
		a, b, c := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{}), lan.Host(t, 3, devicetest.Options{})
		devicetest.Connect(a, b)
		devicetest.Connect(a, c)
		talk(t, a, b)
		talk(t, a, c)
		time.Sleep(time.Second) // a peer accepts one initiation in 50 ms
		copied.Store(a.Device)
		a.MachineCopied()
		if n := used.Load(); n != 1 {
			t.Errorf("%d receiver indices were in use when the first initiation left, want its own", n)
		}
	})
}

// TestUpAfterLongPauseIsSilent: no peer sends any more with a session that is older than Reject-After-Time.
func TestUpAfterLongPauseIsSilent(t *testing.T) {
	for _, pause := range []struct{ before, after time.Duration }{{0, time.Hour}, {4 * time.Minute, 0}} {
		synctest.Test(t, func(t *testing.T) {
			a, b := devicetest.Pair(t, devicetest.Options{})
			talk(t, a, b)
			time.Sleep(pause.before)
			down(a)
			time.Sleep(pause.after)
			a.TUN.SetUp(true)
			a.Await("it is up", a.Up)
			time.Sleep(10 * time.Second)
			if n := a.Indices(); n != 0 {
				t.Errorf("paused %v before and %v after down: %d receiver indices are in use, want 0", pause.before, pause.after, n)
			}
		})
	}
}

func TestDownClosesPort(t *testing.T) {
	lan := devicetest.NewLAN(nil)
	h := lan.Host(t, 1, devicetest.Options{})
	down(h)
	takePort(t, lan, 1, devicetest.ListenPort)
}

// unclosable is a port whose Close fails.
type unclosable struct{ underlay.Port }

func (u unclosable) Close() error { return errors.Join(u.Port.Close(), syscall.EIO) }

func TestPortFailuresAreLoggedWithNextStep(t *testing.T) {
	var log bytes.Buffer
	lan := underlaytest.NewNetwork(nil)
	v4, v6 := devicetest.Addresses(1)
	opening := syscall.ENOBUFS // the next error of OpenPort
	d := device.New(device.Config{
		TUN: tuntest.NewFake(tuntest.FakeConfig{}), Log: slog.New(slog.NewTextHandler(&log, nil)),
		OpenPort: func(o device.PortOptions) (underlay.Port, error) {
			if opening != 0 {
				return nil, opening
			}
			p, err := lan.Open(v4, v6, o.Port, o.Lanes)
			return unclosable{p}, err
		},
	})
	t.Cleanup(d.Shut)
	first, second := uint16(4242), uint16(4243)
	apply(t, d, config.Device{ListenPort: &first})
	d.Follow(tun.Event{Up: true, MTU: 1420})
	opening = 0
	apply(t, d, config.Device{ListenPort: &first})
	apply(t, d, config.Device{ListenPort: &second})
	for _, want := range []string{
		`port=4242 hint="see the error; set the listen port again to retry" error="opening listen port 4242: no buffer space available"`,
		`msg="closing the old listen port failed, traffic uses the new one: the old sockets stay open until this daemon ends" old_port=4242 port=4243 error="closing the UDP port: input/output error"`,
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("got log %q, want %q", log.String(), want)
		}
	}
}

// TestFailedOpenKeepsListenPortReserved: until the port is open, it is no other program's.
func TestFailedOpenKeepsListenPortReserved(t *testing.T) {
	lan := underlaytest.NewNetwork(nil)
	v4, v6 := devicetest.Addresses(1)
	var failing atomic.Bool
	var reserved uint16
	d := device.New(device.Config{
		TUN: tuntest.NewFake(tuntest.FakeConfig{}), Log: slog.New(slog.DiscardHandler),
		ReservePort: func(port uint16) error { reserved = port; return nil },
		OpenPort: func(o device.PortOptions) (underlay.Port, error) {
			if failing.Load() {
				return nil, syscall.EMFILE
			}
			return lan.Open(v4, v6, o.Port, o.Lanes)
		},
	})
	t.Cleanup(d.Shut)
	first, second := uint16(4242), uint16(4243)
	apply(t, d, config.Device{ListenPort: &first})
	failing.Store(true)
	d.Follow(tun.Event{Up: true, MTU: 1420})
	if reserved != first {
		t.Errorf("after the failure port %d is reserved, want %d", reserved, first)
	}
	if err := d.Configure(config.Device{ListenPort: &second}); err == nil || reserved != first {
		t.Errorf("after a second port, error %v: port %d is reserved, want %d", err, reserved, first)
	}
	failing.Store(false)
	apply(t, d, config.Device{ListenPort: &first})
	if reserved != 0 {
		t.Errorf("with the port open, port %d is reserved", reserved)
	}
}

// TestCloseLeavesNothingBehind: synctest does not let a bubble end while a goroutine of it is left.
func TestCloseLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		a, b := lan.Host(t, 1, devicetest.Options{Lanes: 4}), lan.Host(t, 2, devicetest.Options{Lanes: 4})
		devicetest.Connect(a, b)
		talkOnAnyLane(t, a, b)
		a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil))) // perhaps in flight
		a.Close()
		a.Close()
		<-a.Done()
		if n := a.Indices(); n != 0 {
			t.Errorf("%d receiver indices are left", n)
		}
		if err := a.Configure(config.Device{}); err == nil {
			t.Error("a closed device can be configured")
		}
		takePort(t, lan, 1, devicetest.ListenPort)
	})
}

func TestDeletedInterfaceEndsTheDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := devicetest.NewLAN(nil)
		a, b := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{})
		devicetest.Connect(a, b)
		talk(t, a, b)
		a.TUN.Delete()
		<-a.Done()
		if n, peers := a.Indices(), len(a.Status().Peers); n != 0 || peers != 0 {
			t.Errorf("%d receiver indices and %d peers are left", n, peers)
		}
		takePort(t, lan, 1, devicetest.ListenPort)
		a.Close()
	})
}

func TestCloseBeforeStartReturns(t *testing.T) {
	h := devicetest.NewLAN(nil).Host(t, 1, devicetest.Options{Stop: true})
	h.Close()
	<-h.Done()
}

// TestNoGoroutineOutlivesRealSockets is TestCloseLeavesNothingBehind with real sockets, which a synctest bubble cannot contain.
func TestNoGoroutineOutlivesRealSockets(t *testing.T) {
	before := runtime.NumGoroutine()
	a, b := devicetest.NewUDP(t, 1, devicetest.Options{Lanes: 2}), devicetest.NewUDP(t, 2, devicetest.Options{Lanes: 2})
	devicetest.Connect(a, b)
	a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
	a.Await("there is a session", func() bool { return !b.PeerStatus(a).LastHandshake.IsZero() })
	for range 5 {
		down(a)
		a.TUN.SetUp(true)
		a.Await("it is up", a.Up)
	}
	a.Close()
	b.Close()
	expect.EventuallyNoError(t, "all goroutines have ended", func() error {
		if n := runtime.NumGoroutine(); n > before {
			buf := make([]byte, 1<<20)
			return fmt.Errorf("%d, %d before:\n%s", n, before, buf[:runtime.Stack(buf, true)])
		}
		return nil
	})
}
