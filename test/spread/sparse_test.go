// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

// sparse is a tunnel with flows of one packet per second each.
type sparse struct {
	flows   []*net.UDPConn
	packets atomic.Uint64 // on the wire, of the tunnel, in both directions
}

// newSparse starts a tunnel with that spread mode, and waits until it spreads if it does.
func newSparse(t *testing.T, mode string, flows int) *sparse {
	t.Helper()
	l, s := newLab(t), &sparse{}
	l.connectHosts(false, false)
	l.startEngine("--spread", mode, "--lanes", "1")
	if mode == "auto" {
		l.awaitSpread()
	}
	at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(l.right.inner.Addr(), 9))
	expect.NoError(t, l.right.host.Do(func() error {
		c, err := net.ListenUDP("udp4", at)
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return err
	}))
	expect.NoError(t, l.left.host.Do(func() error {
		for range flows {
			c, err := net.DialUDP("udp4", nil, at)
			if err != nil {
				return err
			}
			t.Cleanup(func() { c.Close() })
			s.flows = append(s.flows, c)
		}
		return nil
	}))
	c, err := l.left.host.Capture(netlab.CaptureConfig{Device: cable, Handle: func(p netlab.Packet) {
		if len(p.Data) > 23 && p.Data[12] == 8 && p.Data[13] == 0 && p.Data[23] == 17 { // UDP over IPv4
			s.packets.Add(1)
		}
	}})
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, c.Close()) })
	return s
}

// TestSparseFlowsCostFewPackets counts the packets of tunnels that spread and of those that do not, after the first probes.
func TestSparseFlowsCostFewPackets(t *testing.T) {
	const most, warmUp, seconds = 64, 10, 20
	sizes, modes := []int{1, 16, most}, []string{"off", "auto"}
	var tunnels []*sparse
	for _, n := range sizes {
		for _, mode := range modes {
			tunnels = append(tunnels, newSparse(t, mode, n))
		}
	}
	tick := time.NewTicker(time.Second / most)
	defer tick.Stop()
	var before []uint64
	for second := range warmUp + seconds {
		if second == warmUp {
			for _, s := range tunnels {
				before = append(before, s.packets.Load())
			}
		}
		for i := range most {
			for _, s := range tunnels {
				if i < len(s.flows) {
					_, err := s.flows[i].Write(make([]byte, 60))
					expect.NoError(t, err)
				}
			}
			<-tick.C
		}
	}
	for i, n := range sizes {
		off, auto := tunnels[2*i].packets.Load()-before[2*i], tunnels[2*i+1].packets.Load()-before[2*i+1]
		t.Logf("%d flows: %d packets without spread, %d with it", n, off, auto)
		if off < uint64(n*seconds) || 10*auto > 11*off+20 { // one probe a minute and its answer are the least
			t.Errorf("%d flows: got %d packets with spread, %d without it, want 1.1 times as many at most", n, auto, off)
		}
	}
}
