// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/test/golden"
)

func spreading(context.Context) ([]spreader.DeviceStatus, error) {
	peer := func(lanes int) spreader.PeerStatus {
		return spreader.PeerStatus{Lanes: make([]spreader.LaneStatus, lanes)}
	}
	return []spreader.DeviceStatus{
		{
			Device: "eth0", Spread: spreader.HookStatus{State: "attached", Kind: "tcx"}, Gather: spreader.HookStatus{State: "attached", Kind: "xdp"},
			Tunnels: []spreader.TunnelStatus{
				{Name: "cilium_wg0", Port: 51871, Peers: []spreader.PeerStatus{peer(16), peer(64), {Stalled: true}}},
				{Name: "wg\xff", Port: 51820, Peers: []spreader.PeerStatus{peer(16)}},
			},
			Filter:   spreader.FilterStatus{Dropped: 3},
			Counters: []spreader.Counter{{Name: "spread", Count: 1 << 40}, {Name: "no_lane"}}, Queues: []uint64{7, 0, 9},
		},
		{
			Device: "eth1", Spread: spreader.HookStatus{State: spreader.UnknownState, Kind: "tcx"}, Gather: spreader.HookStatus{State: "detached", Kind: "none"},
			Problems: []string{"the program cannot be read", "the link is gone"},
		},
	}, nil
}

func TestSpreadScrapeMatchesGoldenFile(t *testing.T) {
	text := collected(t, NewSpreadCollector(spreading))
	golden.Check(t, filepath.Join("testdata", "spread.txt"), text)
	checkByPromtool(t, text)
}

func TestSpreadScrapeIsEmptyWithoutDevices(t *testing.T) {
	none := func(context.Context) ([]spreader.DeviceStatus, error) { return nil, nil }
	if text := collected(t, NewSpreadCollector(none)); text != "" {
		t.Error(text)
	}
}

func TestSpreadScrapeFailsWithoutStatus(t *testing.T) {
	for why, source := range map[string]SpreadSource{
		"not permitted": func(context.Context) ([]spreader.DeviceStatus, error) { return nil, errors.New("not permitted") },
		"lock of the spread and gather programs": func(ctx context.Context) ([]spreader.DeviceStatus, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			registry, began := prometheus.NewRegistry(), time.Now()
			registry.MustRegister(NewSpreadCollector(source))
			if _, err := registry.Gather(); err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%s: got error %v, want an error", why, err)
			}
			if took := time.Since(began); took >= 10*time.Second {
				t.Errorf("the scrape takes %s, longer than Prometheus waits", took)
			}
		})
	}
}
