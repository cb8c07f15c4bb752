// SPDX-License-Identifier: Apache-2.0

package view

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/ropewalk/ropewalk/pkg/mesh"
)

// APIVersion is that of the JSON form. Members may be added within one version.
const APIVersion = "ropewalk/v1"

// Document is a kind of JSON document.
type Document string

// The documents.
const (
	StatusDocument Document = "MeshStatus" // nodes, findings
	GraphDocument  Document = "MeshGraph"  // nodes, links
	CheckDocument  Document = "MeshCheck"  // findings
)

type documentJSON struct {
	APIVersion string         `json:"apiVersion"`
	Kind       Document       `json:"kind"`
	Time       string         `json:"time"`
	TimeUnix   int64          `json:"time_unix"`
	Cluster    string         `json:"cluster,omitempty"`
	Summary    summaryJSON    `json:"summary"`
	Nodes      *[]nodeJSON    `json:"nodes,omitempty"`
	Links      *[]linkJSON    `json:"links,omitempty"` // absent where pairs were not looked at
	Findings   *[]findingJSON `json:"findings,omitempty"`
}

type summaryJSON struct {
	Nodes    int            `json:"nodes"`
	OptedOut int            `json:"opted_out"`
	Modes    map[string]int `json:"modes"`
	Versions map[string]int `json:"agent_versions"`
	Links    map[Kind]int   `json:"links,omitempty"`
	Failed   int            `json:"failed"`
	Warnings int            `json:"warnings"`
}

type nodeJSON struct {
	Name          string    `json:"name"`
	Origin        Origin    `json:"origin"`
	Mode          mesh.Mode `json:"mode,omitempty"`
	OptOut        bool      `json:"opt_out"`
	NodeReady     Truth     `json:"node_ready"`
	Ready         Truth     `json:"ready"`
	Message       string    `json:"message,omitempty"`
	PublicKey     string    `json:"public_key,omitempty"`
	NextPublicKey string    `json:"next_public_key,omitempty"`
	KeyGeneration int64     `json:"key_generation,omitempty"`
	KeyAsked      int64     `json:"key_generation_asked,omitempty"`
	Endpoints     []string  `json:"endpoints"`
	PodCIDRs      []string  `json:"pod_cidrs"` // the Node's
	MTU           int       `json:"mtu,omitempty"`
	Peers         int       `json:"peers"`
	PeersExpected *int      `json:"peers_expected,omitempty"`
	SpreadsTo     int       `json:"spreads_to"`
	Gathers       bool      `json:"gathers"`
	StalePeers    int       `json:"stale_peers"`
	StaleNodes    []string  `json:"stale_nodes,omitempty"` // some of them
	AgentVersion  string    `json:"agent_version,omitempty"`
	KernelVersion string    `json:"kernel_version,omitempty"`
}

type linkJSON struct {
	A     string  `json:"a"`
	B     string  `json:"b"`
	Kind  Kind    `json:"kind"`
	There wayJSON `json:"a_to_b"`
	Back  wayJSON `json:"b_to_a"`
}

type wayJSON struct {
	Peer    bool  `json:"peer"`
	Spreads Truth `json:"spreads"`
	Stale   bool  `json:"stale"`
}

type findingJSON struct {
	Severity Severity `json:"severity"`
	Check    string   `json:"check"`
	Nodes    []string `json:"nodes"`
	Found    string   `json:"found"`
	Mend     string   `json:"mend,omitempty"`
}

// WriteJSON writes a document.
func (m *Mesh) WriteJSON(out io.Writer, kind Document) error {
	d := documentJSON{
		APIVersion: APIVersion, Kind: kind, Time: m.Time.UTC().Format(time.RFC3339), TimeUnix: m.Time.Unix(), Cluster: m.Name,
		Summary: summaryJSON(m.Summary()),
	}
	if kind != CheckDocument {
		d.Nodes = new([]nodeJSON{})
		for i := range m.Nodes {
			*d.Nodes = append(*d.Nodes, m.nodeJSON(&m.Nodes[i]))
		}
	}
	if kind == GraphDocument && m.linked() {
		d.Links = new([]linkJSON{})
		for _, l := range m.Links {
			*d.Links = append(*d.Links, linkJSON{l.A, l.B, l.Kind, wayJSON(l.There), wayJSON(l.Back)})
		}
	}
	if kind != GraphDocument {
		d.Findings = new([]findingJSON{})
		for _, f := range m.Findings {
			*d.Findings = append(*d.Findings, findingJSON{f.Severity, f.Check, some(f.Nodes), f.Found, f.Mend})
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
		Name: n.Name, Origin: n.Origin, Mode: n.Told.Mode, OptOut: n.OptOut, NodeReady: n.Kubelet, Ready: n.Told.Ready, Message: n.Told.Message,
		PublicKey: n.key(), NextPublicKey: n.nextKey(), KeyGeneration: n.Told.KeyGeneration, KeyAsked: n.Told.KeyAsked,
		Endpoints: some(n.Told.Endpoints), PodCIDRs: some(n.cidrs()), MTU: n.Told.MTU, Peers: n.Told.Peers, SpreadsTo: n.Told.SpreadsTo,
		Gathers: n.Agent != nil && n.Agent.Gathers, StalePeers: n.Told.Stale.Count, StaleNodes: n.Told.Stale.Nodes,
		AgentVersion: n.Told.AgentVersion, KernelVersion: n.Told.KernelVersion,
	}
	if s, looked := m.sees[n.Name]; looked && n.takesPart() {
		j.PeersExpected = &s.count
	}
	return j
}

// some is [] rather than null.
func some(texts []string) []string {
	if texts == nil {
		return []string{}
	}
	return texts
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
