// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// losing has discarded so many buffers in front of its lanes, and a hundred times as many in front of its sources, each of ten
// datagrams. Each lane has not sent two datagrams per buffer.
type losing struct {
	underlay.Port
	lanes []uint64
}

func (c *losing) SocketDrops(lanes []underlay.SocketDrops) (sources underlay.SocketDrops) {
	clear(lanes)
	for i, n := range c.lanes {
		lanes[i] = underlay.SocketDrops{Buffers: n, Datagrams: 10 * n, Unsent: 2 * n}
		sources.Add(underlay.SocketDrops{Buffers: 100 * n, Datagrams: 1000 * n})
	}
	return sources
}

func TestSocketDropsSurvivePortChange(t *testing.T) {
	var s Drops
	first, second := &losing{lanes: []uint64{1, 0}}, &losing{lanes: []uint64{2, 4}}
	for _, step := range []struct {
		about string
		do    func()
		lanes [2]uint64
		slow  uint64
	}{
		{"before there is a port", func() {}, [2]uint64{}, 0},
		{"with the first port", func() { s.SetPort(first, 2) }, [2]uint64{1, 0}, 100},
		{"when it has dropped more", func() { first.lanes[1] = 3 }, [2]uint64{1, 3}, 400},
		{"while the interface is down", func() { s.SetPort(nil, 2); first.lanes[0] = 9 }, [2]uint64{1, 3}, 400},
		{"with the second port", func() { s.SetPort(second, 2) }, [2]uint64{3, 7}, 1000},
		{"with one that does not count", func() { s.SetPort(struct{ underlay.Port }{}, 2) }, [2]uint64{3, 7}, 1000},
	} {
		step.do()
		stats := engine.Stats{Lanes: []engine.LaneStats{{Drops: map[string]uint64{"rx_auth": 5}}, {Drops: map[string]uint64{}}}}
		stats.Slow.Drops = map[string]uint64{}
		s.AddTo(&stats)
		got := []engine.LaneStats{stats.Lanes[0], stats.Lanes[1], stats.Slow}
		want := []engine.LaneStats{{Drops: map[string]uint64{"rx_auth": 5}}, {Drops: map[string]uint64{}}, {Drops: map[string]uint64{}}}
		for i, n := range []uint64{step.lanes[0], step.lanes[1], step.slow} {
			if n > 0 {
				want[i].SocketDrops, want[i].Drops["rx_socket"] = n, 10*n
			}
			if n > 0 && i < 2 {
				want[i].Drops["tx_send_error"] = 2 * n
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", step.about, diff)
		}
	}
}
