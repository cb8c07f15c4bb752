// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/spf13/pflag"

	"github.com/ropewalk/ropewalk/pkg/cluster/agent"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// addMeshFlags adds the flags of mesh mode.
func addMeshFlags(f *pflag.FlagSet, o *options) {
	f.StringVar(&o.cfg.Tunnel, "tunnel", agent.DefaultTunnel, "mesh mode: the interface's name")
	f.StringVar(&o.cfg.KeyDir, "key-dir", agent.DefaultKeyDir, "directory of the node's key and of the agent's saved state, which must outlive the pod")
	f.StringVar(&o.cfg.EngineConfig, "engine-config", agent.DefaultEngineConfig, "mesh mode: `file` with which the tunnel's engine starts (ropewalk run --config)")
	f.IntVar(&o.cfg.MTU, "mtu", 0, "mesh mode: MTU of the tunnel (default: derived from the node's interface)")
	f.TextVar(&o.cfg.Cleartext, "cleartext", agent.CleartextAuto,
		"mesh mode: whether traffic for pods of nodes that are no peers leaves unencrypted: `never|auto|always`\n"+
			"(auto: until all nodes of the cluster have been peers; then it is dropped)")
	f.Lookup("cleartext").NoOptDefVal = string(agent.CleartextAlways)
	f.TextVar(&o.cfg.PodCIDRSource, "pod-cidr-source", agent.PodCIDRsOfNodes,
		"mesh mode: where the pod prefixes of nodes are read: `node|cilium|calico` (Node.spec, CiliumNodes, BlockAffinities)")
	f.StringSliceVar(&o.pods, "pod-cidr", nil, "mesh mode: prefix of the cluster's pods; traffic for unknown nodes within it is dropped (repeatable)")
	f.StringSliceVar(&o.services, "service-cidr", nil, "mesh mode: prefix of the cluster's Services; RopewalkPeers with allowed IPs in it are refused (repeatable)")
	addNodeFlags(f, o)
}

// addNodeFlags adds the flags for traffic between nodes.
func addNodeFlags(f *pflag.FlagSet, o *options) {
	f.BoolVar(&o.cfg.NodeEncryption.Enabled, "encrypt-nodes", false,
		"mesh mode: also encrypt traffic to the InternalIPs of other nodes, from nodes and pods, except the path between nodes and the API server (needs --node-cidr)")
	f.StringSliceVar(&o.nodes, "node-cidr", nil, "with --encrypt-nodes: prefix of the nodes' InternalIPs; traffic to other addresses is not encrypted (repeatable)")
	f.StringSliceVar(&o.clearPorts, "clear-port", nil,
		"with --encrypt-nodes: TCP and UDP port of nodes that stays unencrypted, ADDRESS:PORT or CIDR:PORT; IPv6 in brackets (repeatable)")
	f.StringToStringVar(&o.clearLabels, "clear-node-label", nil, "with --encrypt-nodes: label of nodes that do not encrypt, `KEY=VALUE`; of several, a node has to have all")
}

// nodeEncryption returns the settings for traffic between nodes.
func (o *options) nodeEncryption() (c agent.NodeEncryption, err error) {
	c.Enabled = o.cfg.NodeEncryption.Enabled
	if !c.Enabled && len(o.nodes)+len(o.clearPorts)+len(o.clearLabels) > 0 {
		return c, usageError{errors.New("--node-cidr, --clear-port and --clear-node-label need --encrypt-nodes: without it, traffic between nodes is not encrypted")}
	}
	if c.CIDRs, err = parsePrefixes("node-cidr", o.nodes); err != nil {
		return c, err
	}
	if c.Enabled && len(c.CIDRs) == 0 {
		return c, usageError{errors.New("--encrypt-nodes needs --node-cidr: without it, a node could attract traffic to any address")}
	}
	for _, text := range o.clearPorts {
		var p agent.ClearPort
		if err := p.UnmarshalText([]byte(text)); err != nil {
			return c, usageError{fmt.Errorf("--clear-port: %w", err)}
		}
		c.Clear = append(c.Clear, p)
	}
	c.Except = make(map[string]v1alpha1.LabelValue, len(o.clearLabels))
	for key, value := range o.clearLabels {
		c.Except[key] = v1alpha1.LabelValue(value)
	}
	return c, nil
}

func parsePrefixes(flag string, texts []string) (all []netip.Prefix, err error) {
	for _, t := range texts {
		p, err := netip.ParsePrefix(t)
		if err != nil {
			return nil, usageError{fmt.Errorf("--%s: %w", flag, err)}
		}
		all = append(all, p.Masked())
	}
	return all, nil
}
