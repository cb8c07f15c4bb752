// SPDX-License-Identifier: Apache-2.0

// Package view shows a cluster's mesh to people and programs: nodes and findings. It evaluates the API's objects with
// pkg/cluster/mesh, by the same rules as the agents, and contacts no node. Names and texts from the API are untrusted. All output is
// safe for a terminal. Begin reading in build.go.
//
// Not for other programs: it may change without notice.
package view

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
)

// Cluster is a snapshot of the API's objects.
type Cluster struct {
	Name  string // the kubeconfig's name of it, "" for none
	Time  time.Time
	Nodes []Node // in any order
	// Peers are the RopewalkPeers, in any order; nil: unknown, since there is no right to list them.
	Peers []Peer
	// Mesh is the RopewalkMesh; nil: there is none, or no right to read it.
	Mesh *MeshObject
}

// MeshObject is the RopewalkMesh, for display.
type MeshObject struct {
	UID        string
	Generation int64
	Cleartext  string
}

// appliedBy reports whether a node has applied it. A RopewalkMesh that is created again begins with
// generation 1.
func (m *MeshObject) appliedBy(r *Reported) bool {
	return m.Generation == r.MeshGeneration && m.UID == r.MeshUID
}

// Peer is a RopewalkPeer, for display.
type Peer struct {
	Name       string   `json:"name"`
	Key        string   `json:"public_key"`
	AllowedIPs []string `json:"allowed_ips"`
	Endpoint   string   `json:"endpoint,omitempty"`      // "": the peer begins
	Nodes      string   `json:"node_selector,omitempty"` // the labels of the nodes that are to have it; "": all
	Accepted   Tristate `json:"accepted"`
	Message    string   `json:"message,omitempty"` // of the condition Accepted
}

// Tristate is a truth value that may be unknown.
type Tristate string

// The values.
const (
	Yes     Tristate = "yes"
	No      Tristate = "no"
	Unknown Tristate = "unknown"
)

// tristate converts a known truth value.
func tristate(is bool) Tristate {
	if is {
		return Yes
	}
	return No
}

// Origin tells which of a node's objects exist.
type Origin string

// The origins.
const (
	Whole      Origin = "whole"       // a Node and its objects
	NoAgent    Origin = "no agent"    // no announcement
	NoNode     Origin = "no node"     // objects without a Node
	OtherOwner Origin = "other owner" // the objects belong to an earlier node of that name
)

// Node is one node.
type Node struct {
	mesh.Node // the agents' view
	Origin    Origin
	// Kubelet is the Ready condition of the Node.
	Kubelet  Tristate
	Reported Reported
}

// Reported has the parts of a node's RopewalkNode and RopewalkAnnouncement that are only displayed.
type Reported struct {
	Mode               mesh.Mode // "": no status yet
	Endpoints          []string
	PodCIDRs           []string
	MTU                int // bytes of the inner packet; 0: not published
	Peers              int // number of peers that it has
	SpreadsTo          int // number of nodes that it spreads towards
	Unresponsive       UnresponsivePeers
	Ready              Tristate
	Message            string // of the Ready condition
	Generation         int64  // of the spec
	ObservedGeneration int64  // of the spec that the status reflects
	KeyGeneration      int64
	KeyRequested       int64 // by the spec; 0: none in particular
	AgentVersion       string
	KernelVersion      string
	OldKernel          bool          // too old to encrypt traffic between nodes
	MeshUID            string        // of the RopewalkMesh that the node has applied
	MeshGeneration     int64         // the same; 0: none
	Observed           []Observation // conditions of mode mesh
}

// Observation is a condition that describes what a node has observed.
type Observation struct {
	Type            string
	Status          Tristate
	Reason, Message string
}

// UnresponsivePeers are the peers that do not answer a node's handshakes.
type UnresponsivePeers struct {
	Count int
	Nodes []string // in ascending order; cut where there are many
}
