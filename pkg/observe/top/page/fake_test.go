// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/observe/top"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// start is a moment of no importance.
func start() time.Time { return time.Unix(1_800_000_000, 0) }

// fake is a tunnel on eight lanes, queues and cores whose counters grow with every sample, a second apart.
type fake struct {
	mu    sync.Mutex
	n     uint64
	name  string
	peers int
}

func (f *fake) sample() top.Sample {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	s := top.Sample{
		At: start().Add(time.Duration(f.n) * time.Second), Interface: f.name, PublicKey: key(999), ListenPort: 51820,
		Stats: device.Stats{Up: true, Stats: engine.Stats{Drops: map[string]uint64{"rx_auth": 7 * f.n}}},
	}
	s.Stats.TUN.TSO, s.Stats.Underlay.GSO = true, true
	for i := range f.peers {
		s.Peers = append(s.Peers, top.PeerCounters{
			PublicKey: key(i), Endpoint: "203.0.113.7:51820", LastHandshake: start(),
			RxBytes: f.n * uint64(i+1) * 1e6, TxBytes: f.n * 1e6, Spread: config.PeerSpread{Active: true, Ports: 8},
		})
	}
	for i := range uint64(8) {
		s.Stats.Lanes = append(s.Stats.Lanes, engine.LaneStats{
			RxBytes: f.n * (i + 1) * 40e6, RxPackets: f.n * (i + 1) * 30e3, RxTrains: f.n * (i + 1) * 1e3,
			TxBytes: f.n * 1e6, TxPackets: f.n * 1e3, TxTrains: f.n * 1e3,
		})
		s.Host.Cores = append(s.Host.Cores, top.CoreCounters{CPU: int(i), Busy: f.n * (10*i + 25), Total: f.n * 100, NetRx: f.n * 1000})
		s.Host.Queues = append(s.Host.Queues, top.QueueCounters{
			Device: "enp8s0f0np0", Queue: int(i), Rx: top.PacketCounters{Packets: f.n * (i + 1) * 30e3, Known: true},
			Interrupts: map[int]uint64{int(i): f.n * 900, int(i+1) % 8: f.n * 100},
		})
	}
	return s
}

func key(i int) string { return fmt.Sprintf("%03dAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", i) }

func (f *fake) now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return start().Add(time.Duration(f.n+1) * time.Second)
}
