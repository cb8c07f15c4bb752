// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/thread"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/measurement"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

var errHidden = errors.New("it is hidden")

// healthy is a host without warnings or failures.
func healthy() *facts.Facts {
	sysctls := map[string]facts.Result[string]{}
	for key, value := range map[string]string{
		facts.BPFJIT: "1", facts.Backlog: "3000", facts.RmemMax: "16777216", facts.WmemMax: "2097152", facts.Forward4: "0",
		facts.Forward6: "0", facts.SrcValidMark: "0", facts.ReservedPorts: "", facts.ConntrackCount: "10",
		facts.ConntrackMax: "1000", facts.RPFilterAll(): "0", facts.RPFilter("eth0"): "2", facts.RPFilter("wg0"): "0",
	} {
		sysctls[key] = facts.Known(value)
	}
	return &facts.Facts{
		Port: 51820,
		Kernel: facts.Kernel{
			Release: "6.12.3-amd64", BTF: facts.Known(true), UDP: facts.Known(underlay.Features{GSO: true, GRO: true, Filter: true}),
			TUN: facts.Known(tun.Features{TSO: true, USO: true}),
		},
		Process: facts.Process{
			Capabilities: facts.Known(^uint64(0)), Memlock: facts.Known(facts.NoLimit), BPFFS: facts.Known("/sys/fs/bpf"),
		},
		CPU: facts.CPU{
			Online: facts.Known([]int{0, 1, 2, 3}), SMT: facts.Known(true), Cores: 2,
			Governors: facts.Known(map[int]string{0: "performance", 1: "performance", 2: "performance", 3: "performance"}),
			Idle:      facts.Known([]facts.IdleState{{Name: "POLL"}, {Name: "C1", Latency: 2 * time.Microsecond}}),
			Latency:   facts.Known(2000 * time.Second), Nodes: facts.Known([]int{0}),
			Group: facts.Known(thread.Group{Cgroup: "/system.slice/ropewalk@wg0.service", Weight: 100, Usual: 100}), Daemon: 4711,
		},
		Underlay: []string{"eth0"}, NICs: []facts.NIC{healthyNIC()}, Sysctls: sysctls,
		LocalPorts: facts.Known(hostnet.LocalPorts{Range: spread.Ports{First: 32768, Last: 60999}}),
		Irqbalance: facts.Known(false),
		Sockets:    facts.Known([]facts.Socket{{Addr: netip.MustParseAddrPort("[::]:51820"), Inode: 7, PID: 42, Process: "ropewalk"}}),
		Clock: facts.Clock{
			Now: time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC), Synchronised: facts.Known(true), Source: facts.Known("tsc"),
		},
		Tunnels: []facts.Tunnel{healthyTunnel()}, Cipher: "avx512", Fallback: "generic", SpreadPorts: spread.DefaultPorts,
	}
}

func healthyNIC() facts.NIC {
	return facts.NIC{
		Name: "eth0", Why: "default route", Index: 2, MTU: 1500, Driver: facts.Known("mlx5_core"), Speed: 25000,
		Channels: facts.Known(hostnet.Channels{Combined: 4, MaxCombined: 16}),
		Rings:    facts.Known(hostnet.Rings{RX: 1024, MaxRX: 8192, TX: 1024, MaxTX: 8192}), Coalescing: facts.Known(hostnet.Coalescing{Adaptive: true}),
		Features: facts.Known(map[string]hostnet.Feature{featureGRO: {On: true}, featureForwarding: {}, featureList: {}}),
		RSS: facts.Known(hostnet.RSS{RSS: spread.RSS{
			Device: "eth0", Key: spread.MicrosoftKey(), Indirection: spread.EqualIndirection(4),
		}}),
		XDPDriver: facts.Known(xsk.Capabilities{Native: true, ZeroCopy: true}),
		Measured:  facts.Unknown[measurement.Result](measurement.ErrNone),
		IRQs: facts.Known([]facts.IRQ{
			{Number: 40, Name: "mlx5_comp0", CPUs: []int{0}},
			{Number: 41, Name: "mlx5_comp1", CPUs: []int{1}},
			{Number: 42, Name: "mlx5_comp2", CPUs: []int{2}},
			{Number: 43, Name: "mlx5_comp3", CPUs: []int{3}},
		}),
		RPS:  facts.Known(map[string][]int{"rx-0": nil, "rx-1": nil, "rx-2": nil, "rx-3": nil}),
		XPS:  facts.Known(map[string][]int{"tx-0": {0}, "tx-1": {1}, "tx-2": {2}, "tx-3": {3}}),
		Node: 0,
	}
}

func healthyTunnel() facts.Tunnel {
	workers := 2
	return facts.Tunnel{
		Name: "wg0", Kind: facts.Ropewalk, Port: 51820, MTU: 1420,
		Peers: []facts.Peer{{Endpoint: config.Endpoint{AddrPort: netip.MustParseAddrPort("192.0.2.7:51820")}, PathMTU: facts.Known(1500)}},
		Stats: facts.Known(facts.Stats{
			Up: true, TUN: tun.Features{TSO: true, USO: true, Steer: true}, Underlay: underlay.Features{GSO: true, GRO: true, Select: true},
			Lanes: make([]engine.LaneStats, 4),
			Spread: config.SpreadReport{
				FirstPort: 61000, LastPort: 61999, Lanes: 4,
				Peers: map[string]config.PeerSpread{"k1": {Active: true, Ports: 4}},
			},
			PostQuantum: new(config.PostQuantumReport),
			Selection:   facts.Selection{ByPort: true}, Cipher: "avx512", Workers: &workers,
		}),
	}
}

// unknown is a host without any readable setting, as for an unprivileged process without /proc and /sys.
func unknown() *facts.Facts {
	f := &facts.Facts{
		Kernel: facts.Kernel{
			Release: "?", BTF: facts.Unknown[bool](errHidden), UDP: facts.Unknown[underlay.Features](errHidden),
			TUN: facts.Unknown[tun.Features](errHidden), TUNDevice: errHidden, TCX: errHidden, XDPSocket: errHidden,
		},
		Process: facts.Process{
			Capabilities: facts.Unknown[uint64](errHidden), Memlock: facts.Unknown[uint64](errHidden), BPFFS: facts.Unknown[string](errHidden),
		},
		CPU: facts.CPU{
			Online: facts.Unknown[[]int](errHidden), Governors: facts.Unknown[map[int]string](errHidden),
			Idle: facts.Unknown[[]facts.IdleState](errHidden), Nodes: facts.Unknown[[]int](errHidden), Group: facts.Unknown[thread.Group](errHidden),
		},
		LocalPorts: facts.Unknown[hostnet.LocalPorts](errHidden), Irqbalance: facts.Unknown[bool](errHidden),
		Sockets: facts.Unknown[[]facts.Socket](errHidden),
		Clock:   facts.Clock{Now: time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC), Synchronised: facts.Unknown[bool](errHidden), Source: facts.Unknown[string](errHidden)},
		Tunnels: []facts.Tunnel{{Name: "wg0", Stats: facts.Unknown[facts.Stats](errHidden)}},
		Plugins: facts.Unknown[[]facts.Plugin](errHidden),
		NICs: []facts.NIC{{
			Name: "eth0", Driver: facts.Unknown[string](errHidden), Channels: facts.Unknown[hostnet.Channels](errHidden),
			Rings: facts.Unknown[hostnet.Rings](errHidden), Coalescing: facts.Unknown[hostnet.Coalescing](errHidden),
			Features: facts.Unknown[map[string]hostnet.Feature](errHidden), RSS: facts.Unknown[hostnet.RSS](errHidden),
			XDP: facts.Unknown[facts.XDP](errHidden), XDPDriver: facts.Unknown[xsk.Capabilities](errHidden), Measured: facts.Unknown[measurement.Result](errHidden),
			IRQs: facts.Unknown[[]facts.IRQ](errHidden), RPS: facts.Unknown[map[string][]int](errHidden), XPS: facts.Unknown[map[string][]int](errHidden),
		}},
		Sysctls: map[string]facts.Result[string]{},
	}
	for key := range healthy().Sysctls {
		f.Sysctls[key] = facts.Unknown[string](errHidden)
	}
	return f
}
