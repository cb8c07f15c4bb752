// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/thread"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/measurement"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/pkg/protocol/chachapoly"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// Result is a value, or the error that prevented reading it.
type Result[T any] struct {
	Value T
	Err   error
}

// Known returns a Result with a value.
func Known[T any](v T) Result[T] { return Result[T]{Value: v} }

// Unknown returns a Result with an error.
func Unknown[T any](err error) Result[T] { return Result[T]{Err: err} }

func result[T any](v T, err error) Result[T] { return Result[T]{Value: v, Err: err} }

// Facts is a snapshot of a host. It holds no secrets.
type Facts struct {
	Pre     bool   // check the host before a tunnel exists
	Port    uint16 // listen port of a future tunnel; used if none is running
	Kernel  Kernel
	Process Process
	CPU     CPU
	// Underlay are the devices of the default routes and of the routes to peers. Outer packets arrive from them.
	Underlay []string
	// NICs are the same devices, but with the lower devices of stacked ones in their place.
	NICs    []NIC
	Sysctls map[string]Result[string] // by path below /proc/sys
	// LocalPorts are the ephemeral ports, which the kernel assigns to sockets that bind no port.
	LocalPorts Result[hostnet.LocalPorts]
	// BigTCP are the devices whose trains may be longer than a tunnel's.
	BigTCP     Result[[]hostnet.BigTCP]
	Irqbalance Result[bool] // it is running
	Sockets    Result[[]Socket]
	Clock      Clock
	Tunnels    []Tunnel
	// OtherTunnels are the tunnels that are not examined: messages may loop through them.
	OtherTunnels []Tunnel
	// Peer is a test of the path to one peer, nil for none.
	Peer    *PeerPath
	Plugins Result[[]Plugin]
	// Cipher is the implementation that this program would use, Fallback the portable one.
	Cipher, Fallback string
	// CipherFailed are the implementations that this CPU computes wrongly.
	CipherFailed []string
	// CipherChoices are the implementations for each number and length of packets, with their speed.
	CipherChoices []chachapoly.Choice
	// SpreadPorts are the default source ports for spread.
	SpreadPorts spread.Ports
}

// Kernel holds the kernel features found by probing.
type Kernel struct {
	Release string // uname -r
	// StallFixed is the release that fixes the stall of this kernel's WireGuard; empty if none is known.
	StallFixed string
	BTF        Result[bool]
	UDP        Result[underlay.Features]
	TUN        Result[tun.Features]
	// TUNDevice is nil if /dev/net/tun could be opened.
	TUNDevice error
	// Steer, TCX and XDPSocket are nil if the kernel supports the feature and wrap errors.ErrUnsupported if not. Another error
	// is why the probe failed.
	Steer, TCX, XDPSocket error
}

// Process holds the privileges of this process.
type Process struct {
	Capabilities Result[uint64] // effective, a bit for each
	Memlock      Result[uint64] // bytes (RLIMIT_MEMLOCK); NoLimit for none
	BPFFS        Result[string] // where it is mounted
	// AgentPod is true in a pod of ropewalk-agent, and EnginePod in one of ropewalk-engine. Their manifests grant what each needs: BPFFS is known in
	// agents of mode spread only.
	AgentPod, EnginePod bool
}

// NoLimit is the Memlock value for an unlimited RLIMIT_MEMLOCK.
const NoLimit uint64 = 1<<64 - 1

// CPU describes the CPUs.
type CPU struct {
	Online    Result[[]int]
	SMT       Result[bool]
	Cores     int                    // physical cores of the online CPUs; 0 if unknown
	Governors Result[map[int]string] // by CPU; empty without a cpufreq driver
	Idle      Result[[]IdleState]    // of CPU 0
	Latency   Result[time.Duration]  // exit latency limit (PM QoS)
	Nodes     Result[[]int]          // online NUMA nodes
	// Group is the scheduler's group of the daemon, or of this process if no daemon runs: Daemon is its PID, 0 for this process.
	Group  Result[thread.Group]
	Daemon int
}

// IdleState is a C-state.
type IdleState struct {
	Name    string
	Latency time.Duration // exit latency
	Off     bool
}

// NIC is a device that sends and receives outer packets.
type NIC struct {
	Name    string
	Why     string // why it was examined
	Above   string // the device that routes name in place of it, such as a bond of which it is a port; "" for none
	Index   int
	MTU     int // bytes
	Virtual bool
	Driver  Result[string]
	Speed   int // Mbit/s; 0 if unknown

	Channels   Result[hostnet.Channels]
	Rings      Result[hostnet.Rings]
	Coalescing Result[hostnet.Coalescing]
	Features   Result[map[string]hostnet.Feature]
	RSS        Result[hostnet.RSS]
	XDP        Result[XDP]
	XDPDriver  Result[xsk.Capabilities]
	NoXDP      string                     // why AF_XDP cannot be used; "" if nothing is known against it
	Measured   Result[measurement.Result] // of UDP sockets against AF_XDP
	IRQs       Result[[]IRQ]
	RPS        Result[map[string][]int] // CPUs, by receive queue ("rx-0")
	XPS        Result[map[string][]int] // CPUs, by transmit queue
	Node       int                      // NUMA node; -1 for none
}

// XDP is the program attached to a device.
type XDP struct {
	Attached bool
	Generic  bool
	ID       uint32
	Name     string // empty if it cannot be read
}

// IRQ is a queue's interrupt.
type IRQ struct {
	Number int
	Name   string
	CPUs   []int // its affinity
}

// Socket is a UDP socket.
type Socket struct {
	Addr    netip.AddrPort
	Inode   uint64 // 0 for sockets of the kernel
	PID     int    // 0 if unknown
	Process string
}

// Clock is the wall clock.
type Clock struct {
	Now          time.Time
	Synchronised Result[bool]
	Source       Result[string]
}

// Kind is the implementation of a tunnel.
type Kind string

// The implementations of tunnels.
const (
	Ropewalk  Kind = "ropewalk"
	InKernel  Kind = "kernel"
	Userspace Kind = "userspace" // another process
)

// Tunnel is a WireGuard device.
type Tunnel struct {
	Name  string
	Kind  Kind
	Port  uint16
	Mark  uint32
	MTU   int // bytes
	Peers []Peer
	Stats Result[Stats] // for Kind Ropewalk only
	// Replaced are the paths by which packets for the tunnel's routes leave beside it.
	Replaced Result[[]hostnet.OtherPath]
	// Saved is known of a tunnel that `ropewalk up` has brought up.
	Saved Result[Saved]
	// Threaded is set if the device's NAPI runs in threads of its own; for Kind InKernel only.
	Threaded bool
	// Nodes are the addresses of the peers that are nodes, if the tunnel belongs to a Kubernetes
	// node and encrypts traffic between nodes.
	Nodes []Node
}

// Saved is the state that `ropewalk up` has saved of a tunnel, compared with the kernel's.
type Saved struct {
	File    string   // of the tunnel, "" if another program has brought it up
	Missing []string // what the kernel lacks of its addresses, routes, rules and MTU
}

// Peer is one of a tunnel's peers that has an endpoint.
type Peer struct {
	Endpoint   config.Endpoint
	AllowedIPs []netip.Prefix
	PathMTU    Result[int]
	Device     string // by which the tunnel's messages to Endpoint leave; "" if there is no route
}

// Node is a Kubernetes node that the tunnel reaches.
type Node struct {
	Addr   netip.Addr
	Device string // by which packets to Addr leave, except the tunnel's; "" if there is no route
}

// NodeTrafficMark is the mark of a tunnel whose agent encrypts traffic between nodes (nodeEncryption of the RopewalkMesh).
const NodeTrafficMark = 0x52

// Stats is the part of the daemon's statistics that checks use.
type Stats struct {
	Up       bool                 `json:"up"`
	TUN      tun.Features         `json:"tun"`
	Underlay underlay.Features    `json:"underlay"`
	Lanes    []engine.LaneStats   `json:"lanes"`
	Drops    map[string]uint64    `json:"drops"` // outside the lanes
	Spread   config.SpreadReport  `json:"spread"`
	PathMTU  config.PathMTUReport `json:"path_mtu"`
	// FailingHandshakes has the peers that do not answer.
	FailingHandshakes config.HandshakeReport `json:"failing_handshakes"`
	Stalls            config.StallReport     `json:"stalls"`
	// PostQuantum is nil if not reported.
	PostQuantum *config.PostQuantumReport `json:"post_quantum"`
	Selection   Selection                 `json:"selection"`
	Cipher      string                    `json:"cipher"`  // empty if not reported
	Workers     *int                      `json:"workers"` // nil if not reported
	// UnderlayStatus is the underlay of data messages; nil if not reported.
	UnderlayStatus *config.UnderlayReport `json:"path"`
}

// Selection is how the kernel selects the receive socket, and so the lane.
type Selection struct {
	ByPort bool   `json:"by_port"`
	Reason string `json:"reason"`
}
