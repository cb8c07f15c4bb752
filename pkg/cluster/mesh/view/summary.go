// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Summary has counts for one line of text.
type Summary struct {
	Nodes    int            `json:"nodes"`
	OptedOut int            `json:"opted_out"`
	Modes    map[string]int `json:"modes"`          // of the nodes that did not opt out and that have a status
	Versions map[string]int `json:"agent_versions"` // of agents
	Mesh     *MeshSummary   `json:"mesh,omitempty"` // absent without a RopewalkMesh
	Failed   int            `json:"failed"`         // findings
	Warnings int            `json:"warnings"`
}

// MeshSummary is the progress of the cluster with the RopewalkMesh.
type MeshSummary struct {
	Generation int64  `json:"generation"`
	Cleartext  string `json:"cleartext"`
	Applied    int    `json:"applied"` // number of nodes that have applied this generation
}

// Summary counts nodes and findings.
func (m *Mesh) Summary() Summary {
	s := Summary{Nodes: len(m.Nodes), Modes: map[string]int{}, Versions: map[string]int{}}
	if m.mesh != nil {
		s.Mesh = &MeshSummary{Generation: m.mesh.Generation, Cleartext: m.mesh.Cleartext}
	}
	for i := range m.Nodes {
		n := &m.Nodes[i]
		if m.mesh != nil && m.mesh.appliedBy(&n.Reported) {
			s.Mesh.Applied++
		}
		switch {
		case n.OptOut:
			s.OptedOut++
		case n.Reported.Mode != "":
			s.Modes[string(n.Reported.Mode)]++
		}
		if n.Reported.AgentVersion != "" {
			s.Versions[n.Reported.AgentVersion]++
		}
	}
	for i := range m.Findings {
		if m.Findings[i].Severity == Failed {
			s.Failed++
		} else {
			s.Warnings++
		}
	}
	return s
}

// String returns, for example, "4 nodes: 3 mesh, 1 without agent status; agents 0.7.0".
func (s Summary) String() string {
	var parts []string
	with := 0
	for _, mode := range slices.Sorted(maps.Keys(s.Modes)) {
		parts = append(parts, fmt.Sprintf("%d %s", s.Modes[mode], mode))
		with += s.Modes[mode]
	}
	if s.OptedOut > 0 {
		parts = append(parts, fmt.Sprintf("%d excluded", s.OptedOut))
	}
	if without := s.Nodes - with - s.OptedOut; without > 0 {
		parts = append(parts, fmt.Sprintf("%d without agent status", without))
	}
	text := plural(s.Nodes, "node")
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	if versions := slices.Sorted(maps.Keys(s.Versions)); len(versions) > 0 {
		text += "; agents " + strings.Join(versions, ", ")
	}
	if s.Mesh != nil {
		text += fmt.Sprintf("; RopewalkMesh generation %d (cleartext %s) on %s", s.Mesh.Generation, s.Mesh.Cleartext, plural(s.Mesh.Applied, "node"))
	}
	return text
}

// Verdict returns, for example, "2 checks failed, 1 warning".
func (s Summary) Verdict() string {
	if s.Failed+s.Warnings == 0 {
		return "no problems found"
	}
	return plural(s.Failed, "check") + " failed, " + plural(s.Warnings, "warning")
}
