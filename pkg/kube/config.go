// SPDX-License-Identifier: Apache-2.0

// Package kube is the Kubernetes agent: it watches the cluster's nodes and what their agents tell (v1alpha1), has pkg/mesh
// decide what this node should do, does it, and tells the others. It is the only place with client-go, and a module of
// its own, so that ropewalk itself stays small.
//
// While the API is away, all stays as it was last. So does what is attached while the agent is away; a tunnel's packets are
// dropped until there is an agent again, which carries them as the one before it did until it reaches the API.
package kube

import (
	"log/slog"
	"net/netip"
	"time"

	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/pkg/mesh"
	"github.com/ropewalk/ropewalk/pkg/metrics"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

// Config is what an agent is started with.
type Config struct {
	// Node is the node's name.
	Node string
	// API is how to reach the cluster.
	API *rest.Config
	// Mode is what to do unless the RopewalkNode says otherwise.
	Mode    mesh.Mode
	Version string // of the agent, as it tells
	Log     *slog.Logger

	// Port is the tunnel's. In spread mode 0 is that of the WireGuard that the node is found to have, in mesh mode
	// DefaultPort.
	Port uint16
	// Ports are the source ports to spread over; zero: spread.DefaultPorts.
	Ports spread.Ports
	// Mark says which bits of a packet's mark hold its flow, in spread mode for a WireGuard that is not the kernel's.
	Mark uint32

	// PerPeerMetrics says in mesh mode when there are metrics of single peers. In a cluster each node has all others for peers.
	PerPeerMetrics metrics.PerPeer

	// BPF is in spread mode the BPF file system to pin in; empty: the system's, which is mounted where there is none.
	BPF string

	// Tunnel is in mesh mode the interface's name; empty: DefaultTunnel.
	Tunnel string
	// KeyDir holds the node's keys, in mesh mode, and what administrators asked for; empty: DefaultKeyDir.
	KeyDir string
	// Open opens the tunnel, in mesh mode.
	Open OpenTunnel
	// Network is where the tunnel is, in mesh mode; nil: the network namespace of the process.
	Network Network
	// MTU of the tunnel; 0: what fits the device that leads to the peers.
	MTU int
	// Cleartext and Pods: see mesh.TunnelConfig.
	Cleartext bool
	Pods      []netip.Prefix

	// ResyncPeriod is how often all is looked at although nothing happened; 0: DefaultResyncPeriod.
	ResyncPeriod time.Duration
	// Propagation is the time that the others are given to learn of this node before it spreads towards them; 0: DefaultPropagation.
	Propagation time.Duration
}

// The defaults of Config.
const (
	DefaultPort         = 51820
	DefaultTunnel       = "ropewalk0"
	DefaultKeyDir       = "/var/lib/ropewalk"
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
		c.Network = hostNetwork{}
	}
	if c.KeyDir == "" {
		c.KeyDir = DefaultKeyDir
	}
	return c
}
