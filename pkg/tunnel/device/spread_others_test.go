// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// TestFlowsToUnspreadPeerLeaveOthersSpread: host 1 sends packets of more flows than a lane's flow table has entries to host 2, to which nothing is
// spread. No flow to host 3 may leave from the listen port.
func TestFlowsToUnspreadPeerLeaveOthersSpread(t *testing.T) {
	listen := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), devicetest.ListenPort)
	for name, passes := range map[string]func(from netip.AddrPort) bool{
		"offline":           func(netip.AddrPort) bool { return false },
		"behind a firewall": func(from netip.AddrPort) bool { return from == listen },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				ports := map[uint16]int{}
				second, third := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")
				lan := devicetest.NewLAN(func(from, to netip.AddrPort, d []byte) underlaytest.Verdict {
					if from.Addr() == listen.Addr() && to.Addr() == second && !passes(from) {
						return underlaytest.Drop
					}
					if from.Addr() == listen.Addr() && to.Addr() == third && len(d) == 176 {
						mu.Lock()
						ports[from.Port()]++
						mu.Unlock()
					}
					return underlaytest.Deliver
				})
				a, b, c := lan.Host(t, 1, devicetest.Options{}), lan.Host(t, 2, devicetest.Options{}), lan.Host(t, 3, devicetest.Options{})
				devicetest.Connect(a, b)
				devicetest.Connect(a, c)
				wantSoon(t, a, c)
				b.Watch(func(int, []byte) {})
				c.Watch(func(int, []byte) {})
				time.Sleep(10 * time.Second) // all flows have ended
				send := func(to *devicetest.Host, port, size int) {
					a.Send(flow.WithVnetHeader(a.To(to, uint16(port), false).UDP(make([]byte, size))))
				}
				for range 3 {
					for i := range 20_000 {
						send(b, 1024+i, 8)
					}
					for i := range 64 {
						send(c, 1024+i, 112)
					}
					time.Sleep(100 * time.Millisecond)
				}
				synctest.Wait()
				mu.Lock()
				defer mu.Unlock()
				if ports[devicetest.ListenPort] > 0 || len(ports) < 16 {
					t.Errorf("messages of 64 flows by port: %v", ports)
				}
			})
		})
	}
}
