// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/pflag"

	"github.com/ropewalk/ropewalk/pkg/cluster/agent"
)

// addMeshFlags adds the flags of mesh mode. The settings of the cluster are in the RopewalkMesh.
func addMeshFlags(f *pflag.FlagSet, o *options) {
	f.StringVar(&o.cfg.Tunnel, "tunnel", agent.DefaultTunnel, "mesh mode: the interface's name")
	f.StringVar(&o.cfg.KeyDir, "key-dir", agent.DefaultKeyDir, "directory of the node's key and of the agent's saved state, which must outlive the pod")
	f.StringVar(&o.cfg.EngineConfig, "engine-config", agent.DefaultEngineConfig, "mesh mode: `file` with which the tunnel's engine starts (ropewalk run --config)")
	f.Uint16Var(&o.cfg.ReflectPort, "reflect-port", agent.DefaultReflectPort,
		"mesh mode: UDP port at which the engines of all nodes reflect datagrams (ropewalk run --reflect), which proves that routes lead through the tunnel; 0: none do")
	f.BoolVar(&o.cfg.StartupTaint, "startup-taint", false, "mesh mode: remove the taint node.ropewalk.io/agent-not-ready from the node once its tunnel is up and peers answer")
	f.TextVar(&o.cfg.PodCIDRSource, "pod-cidr-source", agent.PodCIDRsOfNodes,
		"mesh mode: where the pod prefixes of nodes are read: `node|cilium|calico` (Node.spec, CiliumNodes, BlockAffinities)")
}
