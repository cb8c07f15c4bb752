// SPDX-License-Identifier: Apache-2.0

// Package view shows a cluster's mesh to people and programs: who talks to whom, by which node's word, and what is not as
// it should be. It is made of what the API tells, and of pkg/mesh, by which the agents decide, so it needs no node's answer.
// Names and texts of the API are untrusted; all that is written here is safe for a terminal, a browser and Graphviz.
package view

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/mesh"
)

// Cluster is what the API tells, as of one moment.
type Cluster struct {
	Name  string // by which people know it, "" for none
	Time  time.Time
	Nodes []Node // in any order
}

// Tristate is what is known of a statement.
type Tristate string

// What can be known.
const (
	Yes     Tristate = "yes"
	No      Tristate = "no"
	Unknown Tristate = "unknown"
)

// tristate is that of a thing that is known.
func tristate(is bool) Tristate {
	if is {
		return Yes
	}
	return No
}

// Origin is which of a node's two objects there are.
type Origin string

// The origins.
const (
	Whole      Origin = "whole"       // a Node, and a RopewalkNode that is its
	NoAgent    Origin = "no agent"    // no RopewalkNode
	NoNode     Origin = "no node"     // a RopewalkNode of a node that is gone
	OtherOwner Origin = "other owner" // the RopewalkNode is of an earlier node of that name
)

// Node is one node.
type Node struct {
	mesh.Node // what the agents go by
	Origin    Origin
	// Kubelet tells whether the cluster thinks that the node is well.
	Kubelet  Tristate
	Reported Reported
}

// Reported is what the node's agent tells for people, and what it was asked for.
type Reported struct {
	Mode               mesh.Mode // "": it has told nothing yet
	Endpoints          []string
	PodCIDRs           []string
	MTU                int // bytes of inner packet, 0: not told
	Peers              int // peers that it has
	SpreadsTo          int // nodes that it spreads towards
	Unresponsive       UnresponsivePeers
	Ready              Tristate
	Message            string // why, or what else is worth knowing
	Generation         int64  // of what is asked
	ObservedGeneration int64  // the one that the rest is of
	KeyGeneration      int64
	KeyRequested       int64 // 0: none in particular
	AgentVersion       string
	KernelVersion      string
}

// Unresponsive is the peers that do not answer a node's handshakes.
type UnresponsivePeers struct {
	Count int
	Nodes []string // in ascending order, the first ones where there are many
}

// mayInclude tells whether a node that is not named may be one of them.
func (s *UnresponsivePeers) mayInclude(name string) bool {
	return s.Count > len(s.Nodes) && (len(s.Nodes) == 0 || name > s.Nodes[len(s.Nodes)-1])
}
