// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

// cabled is two hosts with a cable of several queues between them: a sender, and a port with a lane for each queue.
type cabled struct {
	left *netlab.Host
	a, b *Port
	// addrs are the addresses of the two ends, by family.
	addrs [][2]netip.Addr
}

func newCabled(t *testing.T, queues int) *cabled {
	t.Helper()
	lab, err := netlab.New("select")
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	expect.NoError(t, err)
	t.Cleanup(func() { _ = lab.Close() })
	left, err := lab.Host("left")
	expect.NoError(t, err)
	right, err := lab.Host("right")
	expect.NoError(t, err)
	var ends [2][]netip.Prefix
	c := &cabled{left: left}
	for _, network := range []string{"192.0.2.%d/24", "2001:db8::%d/64"} {
		var pair [2]netip.Addr
		for i := range ends {
			prefix := netip.MustParsePrefix(fmt.Sprintf(network, i+1))
			ends[i], pair[i] = append(ends[i], prefix), prefix.Addr()
		}
		c.addrs = append(c.addrs, pair)
	}
	_, err = lab.Cable(left, right, netlab.CableConfig{Queues: queues, MTU: 1500, AddrsA: ends[0], AddrsB: ends[1]})
	expect.NoError(t, err)
	expect.NoError(t, left.Do(func() (err error) { c.a, err = Open(Config{}); return err }))
	t.Cleanup(func() { _ = c.a.Close() })
	expect.NoError(t, right.Do(func() (err error) { c.b, err = Open(Config{Lanes: queues}); return err }))
	t.Cleanup(func() { _ = c.b.Close() })
	return c
}

// source opens a source at the left end.
func (c *cabled) source(t *testing.T, port uint16) (source int) {
	t.Helper()
	expect.NoError(t, c.left.Do(func() (err error) { source, err = c.a.OpenSource(port); return err }))
	return source
}

// TestPlannedTrainsReachTheirLane has a plan for the RSS key that many NICs have. Its order differs from that of the
// range.
func TestPlannedTrainsReachTheirLane(t *testing.T) {
	const queues, segments = 4, 20
	for family := range 2 {
		c := newCabled(t, queues)
		came, addr := listen(c.b), c.addrs[family]
		to := underlay.Endpoint{Dst: netip.AddrPortFrom(addr[1], c.b.LocalPort())}
		ports, err := spread.Plan(netlab.NewRSS(queues), addr[0], to.Dst, spread.DefaultPorts, 0)
		if err != nil || len(ports) != queues {
			t.Fatalf("got plan %v, error %v, want length %d, no error", ports, err, queues)
		}
		slices.Sort(ports)
		slices.Reverse(ports)
		selectLanes(t, c.b, &underlay.Selection{Plans: []underlay.Plan{{From: addr[0], Ports: ports}}})
		for place, port := range ports {
			r := underlay.Run{
				To: &to, Parts: [][]byte{make([]byte, 1000*segments)}, SegSize: 1000, Segments: segments, Source: c.source(t, port),
			}
			expect.NoError(t, c.a.SendRun(&r))
			for size := 0; size < 1000*segments; {
				got := next(t, came)
				size += got.size
				if got.lane != place || got.from != netip.AddrPortFrom(addr[0], port) {
					t.Fatalf("got %+v, want lane %d of %v port %d", got, place, addr[0], port)
				}
			}
		}
	}
}
