// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// TestStockPeerGetsTheSameBytes: whether a device takes part in exchanges is no difference to a peer that does not.
func TestStockPeerGetsTheSameBytes(t *testing.T) {
	off, counts := sentBytes(t, config.PostQuantumOff, config.SpreadOff)
	auto, _ := sentBytes(t, config.PostQuantumAuto, config.SpreadOff)
	for _, kind := range []wire.Type{wire.TypeInitiation, wire.TypeResponse, wire.TypeCookieReply, wire.TypeData} {
		if counts[kind] < 2 {
			t.Errorf("%d messages of type %d, want at least 2", counts[kind], kind)
		}
	}
	if !slices.Equal(auto, off) {
		for i := range min(len(auto), len(off)) {
			if auto[i] != off[i] {
				t.Fatalf("message %d is\n%s\nwant\n%s", i, auto[i], off[i])
			}
		}
		t.Fatalf("%d messages, want %d", len(auto), len(off))
	}
	if ropewalk, _ := sentBytes(t, config.PostQuantumAuto, config.SpreadAuto); slices.Equal(ropewalk, auto) {
		t.Error("a ropewalk gets the bytes of a stock peer")
	}
}

// sentBytes returns all that a device with a policy sends to a peer, with the time, and the numbers of messages of each type. The peer is a stock
// WireGuard if its spread is off. Randomness and time are the same in each call.
func sentBytes(t *testing.T, policy config.PostQuantum, ofPeer config.SpreadMode) (sent []string, counts map[wire.Type]int) {
	t.Helper()
	counts = map[wire.Type]int{}
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		began, own := time.Now(), netip.Addr{}
		lan := devicetest.NewLAN(func(from, _ netip.AddrPort, datagram []byte) underlaytest.Verdict {
			mu.Lock()
			defer mu.Unlock()
			if from.Addr() == own {
				kind, _ := wire.Classify(datagram)
				counts[kind]++
				sent = append(sent, fmt.Sprintf("%v %x", time.Since(began), datagram))
			}
			return underlaytest.Deliver
		})
		var hosts []*devicetest.Host
		for n := byte(1); n <= 2; n++ {
			h := lan.Host(t, n, devicetest.Options{Stop: true, Rand: rand.NewChaCha8([32]byte{n})})
			h.Follow(tun.Event{Up: true, MTU: 1420})
			defer h.Shut()
			hosts = append(hosts, h)
		}
		a, b := hosts[0], hosts[1]
		own = a.Outside(false).Addr()
		setPostQuantum(policy, a)
		setPostQuantum(policy, b)
		b.Apply(config.Device{Settings: config.Settings{Spread: &ofPeer}})
		devicetest.Connect(a, b)
		settle := func(d time.Duration) {
			for end := time.Now().Add(d); ; time.Sleep(50 * time.Millisecond) {
				for again := true; again; {
					synctest.Wait()
					again = a.Step()+b.Step() > 0
				}
				if !time.Now().Before(end) {
					return
				}
			}
		}
		overload := func(h *devicetest.Host, n byte) {
			for range device.UnderLoadLen + 1 {
				h.Handshake(make([]byte, wire.InitiationSize), underlay.Endpoint{Dst: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, n}), 9)})
			}
		}
		for round := range 2 {
			for i, h := range hosts { // data both ways; first, a handshake, then a keepalive
				h.Send((&flow.Flow{Ends: h.To(hosts[1-i], uint16(round), false), ID: uint32(i)}).Next(100))
				settle(12 * time.Second)
			}
			for i, h := range hosts { // each initiates, at rest and under the load of the other, which sends a cookie
				h.PeerOf(hosts[1-i].Public()).Initiate()
				settle(time.Second)
				overload(hosts[1-i], 99)
				h.PeerOf(hosts[1-i].Public()).Initiate()
				settle(7 * time.Second)
			}
			for range 13 { // a rekey
				a.Send((&flow.Flow{Ends: a.To(b, 3, false), ID: 3}).Next(100))
				settle(10 * time.Second)
			}
		}
	})
	return sent, counts
}
