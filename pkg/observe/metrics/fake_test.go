// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/dataplane/workpool"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// fakeDevice is a device whose state the test sets.
type fakeDevice struct {
	mu     sync.Mutex
	status config.Status
	stats  device.Stats
}

func (f *fakeDevice) Status() config.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.status
	s.Peers = append([]config.PeerStatus(nil), s.Peers...)
	return s
}

func (f *fakeDevice) StuckLanes() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats.Stalls.Lanes
}

func (f *fakeDevice) Stats() any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats
}

var testNow = time.Unix(1_800_000_000, 0)

// fakeKey returns the n-th of some keys that look random.
func fakeKey(n int) noise.PublicKey {
	return sha256.Sum256(binary.BigEndian.AppendUint64(nil, uint64(n)))
}

var (
	testPrivateKey   = noise.PrivateKey(fakeKey(1000))
	testPresharedKey = noise.PresharedKey(fakeKey(1001))
)

// fakePeer returns the n-th peer. Its last handshake was ago before testNow; a negative ago means never.
func fakePeer(n int, ago time.Duration) config.PeerStatus {
	p := config.PeerStatus{
		PublicKey: fakeKey(n), PresharedKey: testPresharedKey,
		AllowedIPs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 32)},
		RxBytes:    uint64(1000 * n), TxBytes: uint64(2000 * n),
		Packets: config.PeerPackets{Rx: uint64(10 * n), Tx: uint64(20 * n), RxDrops: uint64(n), TxDrops: 1},
	}
	if ago >= 0 {
		p.LastHandshake = testNow.Add(-ago)
		p.Endpoint.AddrPort = netip.AddrPortFrom(netip.MustParseAddr("2001:db8::7"), uint16(5000+n))
	}
	return p
}

// newFake returns a device with two lanes and a peer in each state.
func newFake() *fakeDevice {
	spread := fakePeer(3, 90*time.Second)
	spread.Keepalive, spread.Spread = 25, config.PeerSpread{Active: true, Ports: 16}
	spread.PathMTU = config.PathMTU{Bytes: 1480, State: config.PathMTUConfirmed}
	return &fakeDevice{
		status: config.Status{
			Name: "wg0", PrivateKey: testPrivateKey, PublicKey: fakeKey(0), ListenPort: 51820, Lanes: 2,
			Peers: []config.PeerStatus{fakePeer(1, -1), fakePeer(2, time.Hour), spread},
		},
		stats: device.Stats{
			Cipher: "avx512", Workers: 2,
			PathMTUErrors: config.ICMPErrorCounts{Believed: 2, Ignored: 3},
			Interface:     "wg0", Up: true, TUN: tun.Features{TSO: true, Steer: true},
			Underlay: underlay.Features{GSO: true, DestinationsWithoutGSO: 3, DestinationsLosingTrains: 2, GRO: true, IPv4: true, IPv6: true, Select: true, Filter: true},
			Stats: engine.Stats{
				Lanes: []engine.LaneStats{fakeLane(1), fakeLane(2)},
				Slow: engine.LaneStats{
					TxPackets: 5, TxRuns: 5, TxRunSizes: engine.RunSizes{Runs: [8]uint64{5}, Messages: 5},
					Drops: map[string]uint64{"tx_send_error": 2},
				},
				Drops: map[string]uint64{"hs_bad_mac1": 7, "tx_send_error": 1},
			},
			Path: config.UnderlayReport{
				Mode: config.UnderlayAuto, Path: config.UnderlayXDP, Device: "eth0", How: "zerocopy", Lanes: 1,
				XDP: []config.XDPLane{
					{Received: 1000, Sent: 900, Slow: 4, Lost: 3, Fallbacks: 1, Malformed: 2, RXHeld: 5, TXHeld: 6, TXKernel: 7},
					{Error: "the device has no such queue"},
				},
				Events: map[string]uint64{"socket": 1000, "stack": 50},
				Drops:  map[string]uint64{"hs_xdp_source_limit": 12},
			},
			Handshakes: device.HandshakeStats{Initiated: 30, Completed: 9, GaveUp: 1, Answered: 8, Confirmed: 7},
			Selection:  device.SelectionReport{ByPort: true, Plans: 1, Wanted: 2},
			Reflector:  &config.ReflectorReport{Port: 7, Answered: 40, Ignored: 4},
		},
	}
}

func fakeLane(n uint64) engine.LaneStats {
	return engine.LaneStats{
		TxPackets: 100 * n, TxBytes: 140_000 * n, TxTrains: 30 * n, TxRuns: 20 * n,
		RxPackets: 200 * n, RxBytes: 280_000 * n, RxTrains: 60 * n, RxRuns: 40 * n,
		TxRunSizes:  engine.RunSizes{Runs: [8]uint64{10 * n, 2 * n, n, n, n, 5 * n, 0, 0}, Messages: 100 * n},
		RxRunSizes:  engine.RunSizes{Runs: [8]uint64{30 * n, 0, 0, 0, 0, 0, 9 * n, n}, Messages: 900 * n},
		TxWorkers:   workpool.Stats{Submitted: 10 * n, Done: 7 * n, ByLane: 2 * n, BackOffs: 1},
		Drops:       map[string]uint64{"rx_replay": 3 * n, "tx_send_error": 10, "rx_socket": 40 * n},
		SocketDrops: 4 * n,
		ICMPErrors:  6 * n, ICMPLimited: n,
	}
}
