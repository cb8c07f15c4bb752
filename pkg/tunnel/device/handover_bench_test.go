// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// manySessions returns n peers. The last one has an endpoint of its own.
func manySessions(n int, last netip.AddrPort) (c config.Device) {
	for i := range n {
		p := config.Peer{
			PublicKey: noise.PublicKey{7}, Endpoint: &config.Endpoint{AddrPort: netip.MustParseAddrPort("192.0.2.9:9")},
			AllowedIPs: []config.AllowedIP{{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100 + byte(i>>16), byte(i >> 8), byte(i)}), 32)}},
		}
		binary.BigEndian.PutUint32(p.PublicKey[1:], uint32(i))
		if i == n-1 {
			p.Endpoint.AddrPort = last
		}
		c.Peers = append(c.Peers, p)
	}
	return c
}

// BenchmarkStop measures how long an upgrade stops the tunnel of peers that all have a session, in memory: from the last packet of the old
// device to the first initiation to a peer for which a packet waits, however late it is among the peers. The two devices share the machine.
func BenchmarkStop(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 50_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			stopped := time.Duration(0)
			for range b.N {
				stopped += stopOnce(b, n)
			}
			b.ReportMetric(float64(stopped.Microseconds())/1e3/float64(b.N), "ms/stop")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func stopOnce(b *testing.B, n int) time.Duration {
	b.Helper()
	at, _ := devicetest.Addresses(10)
	last, reached := netip.AddrPortFrom(at, devicetest.ListenPort), new(atomic.Bool)
	lan := devicetest.NewLAN(func(_, to netip.AddrPort, _ []byte) underlaytest.Verdict {
		if to == last {
			reached.Store(true)
		}
		return underlaytest.Drop
	})
	old, next := lan.Host(b, 1, devicetest.Options{}), lan.Host(b, 1, devicetest.Options{Stop: true})
	lan.Host(b, 10, devicetest.Options{})
	c := manySessions(n, last)
	old.Apply(c)
	for i := range c.Peers {
		if err := old.PeerOf(c.Peers[i].PublicKey).BeginSession(); err != nil {
			b.Fatal(err)
		}
	}
	ends := old.To(next, 7, false)
	ends.Dst = netip.AddrPortFrom(c.Peers[n-1].AllowedIPs[0].Prefix.Addr(), 7)
	packet := flow.WithVnetHeader(ends.UDP([]byte("x")))
	prepare(b, old, next)
	runtime.GC()
	began := time.Now()
	changes, err := old.Leave(nil)
	if err != nil {
		b.Fatal(err)
	}
	if err := next.Update(across(b, changes)); err != nil {
		b.Fatal(err)
	}
	reached.Store(false)
	next.Start()
	for !reached.Load() && time.Since(began) < devicetest.Patience {
		next.Send(packet)
		time.Sleep(50 * time.Microsecond)
	}
	took := time.Since(began)
	old.Retire()
	next.Close()
	return took
}

// prepare passes on to next what it can have of old while old runs.
func prepare(b *testing.B, old, next *devicetest.Host) {
	b.Helper()
	s, err := old.Snapshot()
	if err == nil {
		err = next.Resume(across(b, s))
	}
	for err == nil && old.ChangedPeers() > 128 {
		err = next.Update(across(b, old.Changes()))
	}
	if err != nil {
		b.Fatal(err)
	}
}

// across returns a state as another process gets it.
func across(b *testing.B, s *device.State) *device.State {
	b.Helper()
	text, err := s.Encode()
	if err == nil {
		s, err = device.ParseState(text)
	}
	if err != nil {
		b.Fatal(err)
	}
	return s
}
