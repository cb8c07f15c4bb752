// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"bytes"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// farPort has handshake messages arrive 20 ms late, so that those of two hosts can cross.
type farPort struct{ underlay.Port }

func (p farPort) SendTo(to *underlay.Endpoint, datagram []byte) error {
	if kind, _ := wire.Classify(datagram); kind == wire.TypeData {
		return p.Port.SendTo(to, datagram)
	}
	at, later := *to, bytes.Clone(datagram)
	time.AfterFunc(20*time.Millisecond, func() { _ = p.Port.SendTo(&at, later) })
	return nil
}

// TestCrossedHandshakesLoseNoPackets: two hosts that initiate at the same moment, as the two ends of a site-to-site tunnel
// do, settle on one session, and go on to rekey one at a time.
func TestCrossedHandshakesLoseNoPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &timeline{}
		l.lan = devicetest.NewLAN(l.filter)
		far := devicetest.Options{WrapPort: func(p underlay.Port) underlay.Port { return farPort{p} }}
		a, b := l.lan.Host(t, 1, far), l.lan.Host(t, 2, far)
		devicetest.Connect(a, b)
		a.Send(flow.WithVnetHeader(a.To(b, 1, false).UDP(nil)))
		b.Send(flow.WithVnetHeader(b.To(a, 1, false).UDP(nil)))
		a.Next()
		b.Next()
		if n, m := len(l.take(1, initiations)), len(l.take(2, initiations)); n != 1 || m != 1 {
			t.Fatalf("%d and %d initiations, want them to cross", n, m)
		}
		for range 500 {
			time.Sleep(time.Second)
			for range 3 {
				talk(t, a, b)
				time.Sleep(5 * time.Millisecond)
			}
		}
		// Only the response to the abandoned handshake has an unknown index.
		drops := a.Drops(drop.RXUnknownIndex) + b.Drops(drop.RXUnknownIndex)
		if len(a.AllDrops())+len(b.AllDrops()) != 1 || drops != 1 {
			t.Errorf("dropped %v and %v, want one response", a.AllDrops(), b.AllDrops())
		}
		if n := len(l.take(1, initiations)) + len(l.take(2, initiations)); n != 2+4 {
			t.Errorf("%d initiations in 500 s, want the two that crossed and one every 120 s", n)
		}
	})
}

// TestCrossedHandshakeDoesNotYieldToStock has two hosts initiate at once. A stock one forgets its handshake when it answers another, so it
// ignores the response to its own.
func TestCrossedHandshakeDoesNotYieldToStock(t *testing.T) {
	for range 8 { // of which about a half have the larger key
		synctest.Test(t, func(t *testing.T) {
			own, _ := devicetest.Addresses(1)
			lan := devicetest.NewLAN(func(from, _ netip.AddrPort, datagram []byte) underlaytest.Verdict {
				if kind, _ := wire.Classify(datagram); kind == wire.TypeResponse && from.Addr() == own {
					return underlaytest.Drop
				}
				return underlaytest.Deliver
			})
			far := devicetest.Options{WrapPort: func(p underlay.Port) underlay.Port { return farPort{p} }}
			a, stock := lan.Host(t, 1, far), lan.Host(t, 2, far)
			off := config.SpreadOff
			stock.Apply(config.Device{Settings: config.Settings{Spread: &off}})
			devicetest.Connect(a, stock)
			began := time.Now()
			a.Send(flow.WithVnetHeader(a.To(stock, 1, false).UDP(nil)))
			stock.Send(flow.WithVnetHeader(stock.To(a, 1, false).UDP(nil)))
			a.Next()
			stock.Next()
			if took := time.Since(began); took > time.Second {
				t.Errorf("got the packets after %v, want no handshake timeout", took)
			}
		})
	}
}
