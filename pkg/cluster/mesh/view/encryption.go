// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
)

// Traffic between nodes is encrypted (nodeEncryption of the RopewalkMesh) between any two that both publish that they encrypt it.

// encryptsNodes reports whether the node publishes that it encrypts traffic between nodes.
func (n *Node) encryptsNodes() bool { return n.participates() && n.Agent.EncryptsNodes }

// anyEncryptsNodes reports whether traffic between nodes is to be encrypted in the cluster.
func (m *Mesh) anyEncryptsNodes() bool {
	for i := range m.Nodes {
		if m.Nodes[i].encryptsNodes() {
			return true
		}
	}
	return false
}

// encryptsText returns whether traffic to and from the node itself is encrypted; "" if no agent says.
func (n *Node) encryptsText() string {
	switch {
	case n.Origin != Whole || n.Reported.Mode == "":
		return ""
	case !n.encryptsNodes():
		return "no"
	case n.clearReason() != "":
		return "partly"
	}
	return "yes"
}

// clearReason returns why traffic to or from the node itself is not encrypted, although other nodes encrypt theirs; "": it is, or another
// finding says why.
func (n *Node) clearReason() string {
	if n.Origin != Whole || n.Reported.Mode == "" {
		return ""
	}
	for note := range strings.SplitSeq(n.Reported.Message, "; ") {
		if reason, found := strings.CutPrefix(note, mesh.UnencryptedNote); found {
			return reason
		}
	}
	switch {
	case n.OptOut:
		return "the node is excluded"
	case n.Reported.Mode != mesh.ModeMesh:
		return "it is not in mode mesh"
	case n.Endpoint.IsValid() && !slices.Contains(n.Addrs, n.Endpoint):
		return fmt.Sprintf("its spec.endpoint %s is none of its InternalIPs", n.Endpoint)
	case n.encryptsNodes():
		return ""
	case n.Reported.OldKernel:
		return "its kernel " + n.Reported.KernelVersion + " is older than Linux 6.1"
	}
	return "spec.nodeEncryption of the RopewalkMesh is not enabled, or its clearNodes select the node"
}

// checkEncryption finds nodes that do not take part in the encryption of traffic between nodes.
func (c *checker) checkEncryption() {
	if !c.m.encrypts {
		return
	}
	for i := range c.m.Nodes {
		n := &c.m.Nodes[i]
		if reason := n.clearReason(); reason != "" && !n.OptOut {
			c.add(Warning, "encryption", n.Name, "traffic to and from the node itself is not encrypted: "+reason, "")
		}
	}
}
