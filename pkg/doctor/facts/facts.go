// SPDX-License-Identifier: Apache-2.0

// Package facts gathers what package doctor judges: the kernel's abilities, by probe; the process's privileges; the NICs
// below the tunnels; processors, sysctls, sockets, clock; and the tunnels that run. It changes nothing that outlives the
// call, and needs no privilege: what cannot be read is an Answer with an error.
package facts

import (
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/spread"
	"github.com/ropewalk/ropewalk/pkg/tun"
	"github.com/ropewalk/ropewalk/pkg/underlay"
	"github.com/ropewalk/ropewalk/pkg/xsk"
)

// Answer is a fact, or why it is not known.
type Answer[T any] struct {
	Value T
	Err   error
}

// Known is an answer.
func Known[T any](v T) Answer[T] { return Answer[T]{Value: v} }

// Unknown is the lack of one.
func Unknown[T any](err error) Answer[T] { return Answer[T]{Err: err} }

func answer[T any](v T, err error) Answer[T] { return Answer[T]{Value: v, Err: err} }

// Facts is a host at one moment. It holds no secrets.
type Facts struct {
	Pre     bool   // no tunnel runs yet
	Port    uint16 // that a tunnel is to listen on; used where none runs
	Kernel  Kernel
	Process Process
	CPU     CPU
	NICs    []NIC
	Sysctls map[string]Answer[string] // by path below /proc/sys
	// LocalPorts are what the kernel gives to sockets that name no port.
	LocalPorts Answer[hostnet.LocalPorts]
	Irqbalance Answer[bool] // it runs
	Sockets    Answer[[]Socket]
	Clock      Clock
	Tunnels    []Tunnel
	Plugins    Answer[[]Plugin]
	// Cipher is the implementation that this program would use, Fallback the one that runs everywhere.
	Cipher, Fallback string
	// SpreadPorts are the source ports that a tunnel spreads over unless told otherwise.
	SpreadPorts spread.Ports
}

// Kernel is what the kernel says when it is asked to do something.
type Kernel struct {
	Release string // uname -r
	BTF     Answer[bool]
	UDP     Answer[underlay.Features]
	TUN     Answer[tun.Features]
	// TUNDevice is nil if /dev/net/tun could be opened.
	TUNDevice error
	// Steer, TCX and XDPSocket are nil if the kernel has it, errors.ErrUnsupported in the chain if not, and else why that
	// could not be told.
	Steer, TCX, XDPSocket error
}

// Process is what this process may do.
type Process struct {
	Capabilities Answer[uint64] // effective, a bit for each
	Memlock      Answer[uint64] // bytes (RLIMIT_MEMLOCK); NoLimit for none
	BPFFS        Answer[string] // where it is mounted
}

// NoLimit is a limit that is none.
const NoLimit uint64 = 1<<64 - 1

// CPU is the processors.
type CPU struct {
	Online    Answer[[]int]
	SMT       Answer[bool]
	Cores     int                    // online, threads of one core counted once; 0 if not known
	Governors Answer[map[int]string] // by processor; empty where nothing scales frequencies
	Idle      Answer[[]IdleState]    // of the first processor
	Latency   Answer[time.Duration]  // that everybody's requests allow for leaving an idle state
	Nodes     Answer[[]int]          // NUMA nodes that are online
}

// IdleState is a C-state.
type IdleState struct {
	Name    string
	Latency time.Duration // for leaving it
	Off     bool
}

// NIC is a device that outer packets leave and arrive by.
type NIC struct {
	Name    string
	Why     string // it was looked at
	Index   int
	MTU     int // bytes
	Virtual bool
	Driver  Answer[string]
	Speed   int // Mbit/s; 0 if not known

	Channels   Answer[hostnet.Channels]
	Rings      Answer[hostnet.Rings]
	Coalescing Answer[hostnet.Coalescing]
	Features   Answer[map[string]hostnet.Feature]
	RSS        Answer[hostnet.RSS]
	XDP        Answer[XDP]
	XDPDriver  Answer[xsk.Capabilities]
	IRQs       Answer[[]IRQ]
	RPS        Answer[map[string][]int] // processors, by receive queue ("rx-0")
	XPS        Answer[map[string][]int] // by transmit queue
	Node       int                      // NUMA; -1 for none
}

// XDP is the program that a device runs.
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
	CPUs   []int // that it goes to
}

// Socket is a UDP socket.
type Socket struct {
	Addr    netip.AddrPort
	Inode   uint64 // 0 for the kernel's own
	PID     int    // 0 if not known
	Process string
}

// Clock is the wall clock.
type Clock struct {
	Now          time.Time
	Synchronised Answer[bool]
	Source       Answer[string]
}

// Kind is who serves a tunnel.
type Kind string

// Who serves tunnels.
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
	Stats Answer[Stats] // of Ropewalk's alone
}

// Peer is one of a tunnel's peers that has an endpoint.
type Peer struct {
	Endpoint netip.AddrPort
	PathMTU  Answer[int]
}

// Stats is the part that is judged of what ropewalk's daemon says of itself.
type Stats struct {
	Up        bool                `json:"up"`
	TUN       tun.Features        `json:"tun"`
	Underlay  underlay.Features   `json:"underlay"`
	Lanes     []LaneStats         `json:"lanes"`
	Spread    config.SpreadReport `json:"spread"`
	Selection Selection           `json:"selection"`
	Cipher    string              `json:"cipher"`  // empty if the daemon does not tell
	Workers   *int                `json:"workers"` // nil if it does not tell
	// Way is by what way data messages go; nil if the daemon does not tell.
	Way *config.UnderlayReport `json:"way"`
}

// LaneStats is of one lane.
type LaneStats struct {
	TxCrew Crew `json:"tx_crew"`
	RxCrew Crew `json:"rx_crew"`
}

// Crew is what idle workers took of a lane's runs.
type Crew struct {
	Offered uint64 `json:"offered"`
	Done    uint64 `json:"done"`
}

// Selection is how the lanes of what arrives are chosen.
type Selection struct {
	ByPort bool   `json:"by_port"`
	Reason string `json:"reason"`
}
