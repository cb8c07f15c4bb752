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

// Truth is what is known of a statement.
type Truth string

// What can be known.
const (
	Yes     Truth = "yes"
	No      Truth = "no"
	Unknown Truth = "unknown"
)

// truth is that of a thing that is known.
func truth(is bool) Truth {
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
	Kubelet Truth
	Told    Told
}

// Told is what the node's agent tells for people, and what it was asked for.
type Told struct {
	Mode          mesh.Mode // "": it has told nothing yet
	Endpoints     []string
	PodCIDRs      []string
	MTU           int // bytes of inner packet, 0: not told
	Peers         int // peers that it has
	SpreadsTo     int // nodes that it spreads towards
	Stale         Stale
	Ready         Truth
	Message       string // why, or what else is worth knowing
	Generation    int64  // of what is asked
	Observed      int64  // the one that the rest is of
	KeyGeneration int64
	KeyAsked      int64 // 0: none in particular
	AgentVersion  string
	KernelVersion string
}

// Stale is the peers that do not answer a node's handshakes.
type Stale struct {
	Count int
	Nodes []string // in ascending order, the first ones where there are many
}

// mayHide tells whether a node that is not named may be one of them.
func (s *Stale) mayHide(name string) bool {
	return s.Count > len(s.Nodes) && (len(s.Nodes) == 0 || name > s.Nodes[len(s.Nodes)-1])
}
