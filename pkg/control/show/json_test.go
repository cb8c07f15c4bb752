// SPDX-License-Identifier: Apache-2.0

package show_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/test/golden"
)

// counted returns the daemon's statistics of the sample.
func counted() device.Stats {
	lane := engine.LaneStats{
		TxPackets: 1, TxBytes: 2000, TxTrains: 3, TxRuns: 4, RxPackets: 5, RxBytes: 6 << 20, RxTrains: 7, RxRuns: 8,
		TxWorkers: workpool.Stats{Submitted: 9, Done: 8, ByLane: 1, BackOffs: 2}, RxWorkers: workpool.Stats{Submitted: 3, Done: 2},
		ICMPErrors: 6, ICMPLimited: 7, Drops: map[string]uint64{"replay": 5, "bad_tag": 1, drop.RXSocket.String(): 20}, SocketDrops: 2,
	}
	return device.Stats{
		Interface: "wg0", Up: true, TUN: tun.Features{TSO: true, USO: true, Steer: true, NetNS: 4026531840},
		Underlay: underlay.Features{GSO: true, DestinationsWithoutGSO: 3, DestinationsLosingTrains: 2, GRO: true, IPv4: true, IPv6: true, Select: true, Filter: true, DontFragment: true},
		Stats: engine.Stats{
			Lanes: []engine.LaneStats{lane, {}}, Slow: engine.LaneStats{TxPackets: 2, Drops: map[string]uint64{"down": 5}},
			Drops: map[string]uint64{"replay": 1, "bad_mac1": 7},
		},
		Path: config.UnderlayReport{
			Mode: config.UnderlayAuto, Path: config.UnderlayXDP, Device: "eth0", How: "copy", Lanes: 2, Reason: "it has no zero-copy",
			XDP: []config.XDPLane{{Received: 5}, {Error: "busy"}}, Events: map[string]uint64{"to_socket": 5}, Drops: map[string]uint64{"guard": 3},
		},
		Selection: device.SelectionReport{ByPort: true, Plans: 1, Wanted: 2, Reason: "one plan too many"},
		Cipher:    "avx512", Workers: 2,
	}
}

// decoded returns a daemon's statistics as a show.Stats.
func decoded(t *testing.T, s any) *show.Stats {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	got := new(show.Stats)
	if err := json.Unmarshal(text, got); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestStatsDecodesDaemonStatistics(t *testing.T) {
	lane := show.LaneStats{
		TxPackets: 1, TxBytes: 2000, TxTrains: 3, TxRuns: 4, RxPackets: 5, RxBytes: 6 << 20, RxTrains: 7, RxRuns: 8,
		TxWorkers: show.WorkerStats{Submitted: 9, Done: 8, ByLane: 1, BackOffs: 2}, RxWorkers: show.WorkerStats{Submitted: 3, Done: 2},
		ICMPErrors: 6, ICMPLimited: 7, Drops: map[string]uint64{"replay": 5, "bad_tag": 1, "rx_socket": 20}, SocketDrops: 2,
	}
	want := &show.Stats{
		Up: true, TUN: show.TUNFeatures{TSO: true, USO: true, Steer: true, NetNS: 4026531840},
		Underlay: show.UnderlayFeatures{GSO: true, DestinationsWithoutGSO: 3, DestinationsLosingTrains: 2, GRO: true, IPv4: true, IPv6: true, Select: true, Filter: true, DontFragment: true},
		Lanes:    []show.LaneStats{lane, {}}, Slow: show.LaneStats{TxPackets: 2, Drops: map[string]uint64{"down": 5}},
		Drops: map[string]uint64{"replay": 1, "bad_mac1": 7}, Spread: new(config.SpreadReport),
		Path: new(counted().Path), Selection: &show.Selection{ByPort: true, Plans: 1, Wanted: 2, Reason: "one plan too many"},
		Cipher: "avx512", Workers: new(2), PostQuantum: new(config.PostQuantumReport),
	}
	got := decoded(t, counted())
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func asJSON(t *testing.T, opt show.Options, devices ...config.Status) string {
	t.Helper()
	var b bytes.Buffer
	if err := show.JSON(&b, devices, opt); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestJSONMatchesGoldenFiles(t *testing.T) {
	opt := show.Options{Now: now, ZoneName: zoneName}
	golden.Check(t, "testdata/json.golden", asJSON(t, opt, sample(), config.Status{Name: "bare"}))
	opt.NetNS = map[string]string{"wg0": "blue"}
	opt.Lanes, opt.Stats = true, map[string]*show.Stats{"wg0": decoded(t, counted())}
	golden.Check(t, "testdata/json-lanes.golden", asJSON(t, opt, spreading()))
}

func TestPrettyStatsMatchGoldenFile(t *testing.T) {
	udp := &show.Stats{Up: true, Path: &config.UnderlayReport{
		Path: config.UnderlayUDP, Reason: "eth0 is a veth",
	}}
	down := &show.Stats{Lanes: []show.LaneStats{{}}, Selection: &show.Selection{}}
	opt := show.Options{Now: now, ZoneName: zoneName, Lanes: true, Stats: map[string]*show.Stats{"wg0": decoded(t, counted()), "down": down, "udp": udp}, NetNS: map[string]string{"wg0": "blue", "udp": "red\n"}}
	st := spreading()
	st.Peers = nil
	golden.Check(t, "testdata/stats.golden", pretty(t, opt, st, config.Status{Name: "down", Lanes: 1, Spread: config.SpreadOff},
		config.Status{Name: "udp", Lanes: 1, Spread: config.SpreadOff}))
}

func TestJSONOmitsSecretKeysWithoutShowKeys(t *testing.T) {
	st := sample()
	secrets := []string{st.PrivateKey.Base64()}
	for i := range st.Peers {
		if psk := st.Peers[i].PresharedKey; !psk.IsZero() {
			secrets = append(secrets, psk.Base64())
		}
	}
	if len(secrets) < 2 {
		t.Fatal("the sample has no keys to hide")
	}
	hidden, shown := asJSON(t, show.Options{Now: now}, st), asJSON(t, show.Options{Now: now, ShowKeys: true}, st)
	for _, s := range secrets {
		if strings.Contains(hidden, s) || !strings.Contains(shown, s) {
			t.Errorf("hidden: %v, shown: %v", !strings.Contains(hidden, s), strings.Contains(shown, s))
		}
	}
}
