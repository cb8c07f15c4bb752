// SPDX-License-Identifier: Apache-2.0

package view

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
)

// APIVersion is the version of the JSON documents. Members may be added within a version.
const APIVersion = "ropewalk/v1"

// Document is a kind of JSON document.
type Document string

// The documents.
const (
	StatusDocument Document = "MeshStatus" // nodes, RopewalkPeers, findings
	CheckDocument  Document = "MeshCheck"  // findings
)

type documentJSON struct {
	APIVersion string      `json:"apiVersion"`
	Kind       Document    `json:"kind"`
	Time       string      `json:"time"`
	TimeUnix   int64       `json:"time_unix"`
	Cluster    string      `json:"cluster,omitempty"`
	Summary    Summary     `json:"summary"`
	Nodes      *[]nodeJSON `json:"nodes,omitempty"`
	Peers      *[]Peer     `json:"ropewalk_peers,omitempty"` // absent if unknown
	Findings   *[]Finding  `json:"findings,omitempty"`
}

type nodeJSON struct {
	Name          string    `json:"name"`
	Origin        Origin    `json:"origin"`
	Mode          mesh.Mode `json:"mode,omitempty"`
	OptOut        bool      `json:"opt_out"`
	NodeReady     Tristate  `json:"node_ready"`
	Ready         Tristate  `json:"ready"`
	Message       string    `json:"message,omitempty"`
	PublicKey     string    `json:"public_key,omitempty"`
	NextPublicKey string    `json:"next_public_key,omitempty"`
	KeyGeneration int64     `json:"key_generation,omitempty"`
	KeyRequested  int64     `json:"key_generation_requested,omitempty"`
	Endpoints     []string  `json:"endpoints"`
	PodCIDRs      []string  `json:"pod_cidrs"` // the Node's
	MTU           int       `json:"mtu,omitempty"`
	Peers         int       `json:"peers"`
	PeersExpected *int      `json:"peers_expected,omitempty"`
	SpreadsTo     int       `json:"spreads_to"`
	Gathers       bool      `json:"gathers"`
	StalePeers    int       `json:"stale_peers"`
	StaleNodes    []string  `json:"stale_nodes,omitempty"` // maybe not all
	AgentVersion  string    `json:"agent_version,omitempty"`
	KernelVersion string    `json:"kernel_version,omitempty"`

	EncryptsNodes *bool  `json:"encrypts_nodes,omitempty"` // absent if no node encrypts traffic between nodes
	ClearReason   string `json:"clear_reason,omitempty"`   // why that traffic of this node is not encrypted, or not all of it

	MeshGeneration int64 `json:"mesh_generation,omitempty"` // of the RopewalkMesh that the node has applied
}

// WriteJSON writes a document.
func (m *Mesh) WriteJSON(out io.Writer, kind Document) error {
	d := documentJSON{
		APIVersion: APIVersion, Kind: kind, Time: m.Time.UTC().Format(time.RFC3339), TimeUnix: m.Time.Unix(), Cluster: m.Name,
		Summary: m.Summary(), Findings: new(nonNil(m.Findings)),
	}
	if kind == StatusDocument {
		d.Nodes = new([]nodeJSON{})
		for i := range m.Nodes {
			*d.Nodes = append(*d.Nodes, m.nodeJSON(&m.Nodes[i]))
		}
		if m.Peers != nil {
			d.Peers = &m.Peers
		}
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	if err := e.Encode(d); err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	return nil
}

func (m *Mesh) nodeJSON(n *Node) nodeJSON {
	j := nodeJSON{
		Name: n.Name, Origin: n.Origin, Mode: n.Reported.Mode, OptOut: n.OptOut, NodeReady: n.Kubelet, Ready: n.Reported.Ready, Message: n.Reported.Message,
		PublicKey: n.key(), NextPublicKey: n.nextKey(), KeyGeneration: n.Reported.KeyGeneration, KeyRequested: n.Reported.KeyRequested,
		Endpoints: nonNil(n.Reported.Endpoints), PodCIDRs: nonNil(n.cidrs()), MTU: n.Reported.MTU, Peers: n.Reported.Peers, SpreadsTo: n.Reported.SpreadsTo,
		Gathers: n.Agent != nil && n.Agent.Gathers, StalePeers: n.Reported.Unresponsive.Count, StaleNodes: n.Reported.Unresponsive.Nodes,
		AgentVersion: n.Reported.AgentVersion, KernelVersion: n.Reported.KernelVersion, MeshGeneration: n.Reported.MeshGeneration,
	}
	if m.encrypts {
		j.EncryptsNodes, j.ClearReason = new(n.encryptsNodes()), n.clearReason()
	}
	if s, known := m.expected[n.Name]; known && n.participates() {
		j.PeersExpected = &s.peers
	}
	return j
}

// nonNil makes the JSON [] rather than null.
func nonNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func (n *Node) key() string {
	if n.Agent == nil || n.Agent.Key.IsZero() {
		return ""
	}
	return n.Agent.Key.Base64()
}

func (n *Node) nextKey() string {
	if n.Agent == nil || n.Agent.NextKey.IsZero() {
		return ""
	}
	return n.Agent.NextKey.Base64()
}

func (n *Node) cidrs() []string {
	var texts []string
	for _, p := range n.PodCIDRs {
		texts = append(texts, p.String())
	}
	return texts
}
