// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// sharedKeyCost returns the datagrams and bytes that a hub sends in two minutes to two machines with one key, which send a packet each per second
// in turn. The hub answers each.
func sharedKeyCost(t *testing.T, mode config.SpreadMode) (datagrams, bytes int64) {
	synctest.Test(t, func(t *testing.T) {
		var count, sum atomic.Int64
		hubAt, _ := devicetest.Addresses(1)
		lan := devicetest.NewLAN(func(from, _ netip.AddrPort, datagram []byte) underlaytest.Verdict {
			if from.Addr() == hubAt {
				count.Add(1)
				sum.Add(int64(len(datagram)))
			}
			return underlaytest.Deliver
		})
		hub, x, y := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{}), lan.Host(t, 3, devicetest.Options{})
		y.Apply(config.Device{PrivateKey: &x.Key})
		for _, h := range []*devicetest.Host{hub, x, y} {
			h.Apply(config.Device{Settings: config.Settings{Spread: &mode}})
		}
		devicetest.Connect(hub, x)
		y.Apply(config.Device{Peers: []config.Peer{hub.AsPeer(false)}})
		for range 120 {
			for _, h := range []*devicetest.Host{x, y} {
				h.Send(flow.WithVnetHeader(x.To(hub, 1, false).UDP(make([]byte, 100))))
				time.Sleep(10 * time.Millisecond)
				hub.Send(flow.WithVnetHeader(hub.To(x, 1, false).UDP(make([]byte, 100))))
				time.Sleep(490 * time.Millisecond)
			}
		}
		datagrams, bytes = count.Load(), sum.Load()
	})
	return datagrams, bytes
}

// TestTwoMachinesWithOneKeyCostLittle compares with spread off, where no hello or probe leaves, as from a stock WireGuard.
func TestTwoMachinesWithOneKeyCostLittle(t *testing.T) {
	stock, stockBytes := sharedKeyCost(t, config.SpreadOff)
	n, bytes := sharedKeyCost(t, config.SpreadAuto)
	t.Logf("%d datagrams and %d bytes, with spread off %d and %d", n, bytes, stock, stockBytes)
	if n > 2*stock || bytes > 2*stockBytes {
		t.Errorf("the hub sends %d datagrams and %d bytes, want at most twice %d and %d", n, bytes, stock, stockBytes)
	}
}
