// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"
	"time"

	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/pkg/cluster/engine"
	"github.com/ropewalk/ropewalk/pkg/cluster/host"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/meshmode"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// Config configures an agent.
type Config struct {
	// Node is the node's name.
	Node string
	// API has the address and the credentials of the API server.
	API     *rest.Config
	Mode    mesh.Mode
	Version string // of the agent, for the status
	Log     *slog.Logger
	// KeyDir holds the node's keys and the persisted state; empty: DefaultKeyDir.
	KeyDir string

	// Port is the tunnel's UDP port in spread mode. 0: as the WireGuard found on the node.
	Port uint16
	// Ports are the source ports to spread over; zero: spread.DefaultPorts.
	Ports spread.Ports

	// ResyncPeriod is the interval of reconciles without an event; 0: DefaultResyncPeriod.
	ResyncPeriod time.Duration
	// Propagation is how long other nodes may take to receive this node's status. Spreading, key rotation, the end of cleartext and cleanup wait for it. 0: DefaultPropagation.
	Propagation time.Duration

	SpreadConfig
	MeshConfig
}

// SpreadConfig has the settings of spread mode.
type SpreadConfig struct {
	// AnySocket is as in spreader.Config, for tests.
	AnySocket bool
	// RestartStalledPeers is as in spreader.Config.
	RestartStalledPeers bool
	// BPF is the BPF file system for pins, in both modes. Empty: the system's, which is mounted if necessary.
	BPF string
}

// MeshConfig has the settings of mesh mode that the RopewalkMesh does not have.
type MeshConfig struct {
	// Tunnel is the interface's name; empty: DefaultTunnel.
	Tunnel string
	// StartupTaint makes the agent remove the start-up taint of its node.
	StartupTaint bool
	// PodCIDRSource says where the pod prefixes of nodes are read; empty: PodCIDRsOfNodes.
	PodCIDRSource PodCIDRSource
	// Engine runs the tunnel; nil: it serves Tunnel's control socket, and has EngineConfig.
	Engine Engine
	// EngineConfig is the file with which the engine starts (its --config); empty:
	// DefaultEngineConfig.
	EngineConfig string
	// Network is the host to change; nil: the network namespace of the process.
	Network host.Network
	// ReflectPort is the UDP port at which the nodes' engines reflect datagrams; 0: none do, and routes into the tunnel cannot be proved.
	ReflectPort uint16
	// Guard watches what leaves the host; nil: the network namespace of the process, with pins in SpreadConfig.BPF.
	Guard meshmode.GuardHost

	openAsker meshmode.OpenAsker // nil: the default of meshmode.Prover
	proved    func()             // called when a proof changes what a reconcile would do; nil: not called
}

// The defaults of Config.
const (
	DefaultPort         = 51820
	DefaultTunnel       = "ropewalk0"
	DefaultKeyDir       = "/var/lib/ropewalk"
	DefaultEngineConfig = "/var/lib/ropewalk/engine/tunnel.conf"
	DefaultReflectPort  = 9569
	DefaultResyncPeriod = 5 * time.Minute
	DefaultPropagation  = 10 * time.Second
)

func (c Config) withDefaults() Config {
	if c.Ports == (spread.Ports{}) {
		c.Ports = spread.DefaultPorts
	}
	if c.ResyncPeriod <= 0 {
		c.ResyncPeriod = DefaultResyncPeriod
	}
	if c.Propagation == 0 {
		c.Propagation = DefaultPropagation
	}
	if c.Tunnel == "" {
		c.Tunnel = DefaultTunnel
	}
	if c.Network == nil {
		c.Network = host.System{}
	}
	if c.Guard == nil {
		c.Guard = meshmode.BPFFS(c.BPF)
	}
	if c.proved == nil {
		c.proved = func() {}
	}
	if c.PodCIDRSource == "" {
		c.PodCIDRSource = PodCIDRsOfNodes
	}
	if c.EngineConfig == "" {
		c.EngineConfig = DefaultEngineConfig
	}
	if c.Engine == nil {
		c.Engine = &engine.Client{Name: c.Tunnel, File: c.EngineConfig}
	}
	if c.KeyDir == "" {
		c.KeyDir = DefaultKeyDir
	}
	return c
}
