// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
)

// Mesh is the displayed state of a cluster.
type Mesh struct {
	Name     string
	Time     time.Time
	Nodes    []Node    // by name
	Findings []Finding // the worst first
	Peers    []Peer    // by name; nil: unknown
	expected map[string]expectation
	encrypts bool        // some node encrypts traffic between nodes
	mesh     *MeshObject // nil: none is known
}

// maxWhole is the number of nodes up to which the peers of each node are computed. The cost grows
// with the square of the number.
const maxWhole = 500

// sampledNodes is the number of nodes whose peers are computed in a larger cluster.
const sampledNodes = 50

// expectation is the state that one node should have, by its agent's rules.
type expectation struct {
	peers   int
	spreads int // number of nodes that it should spread towards
}

// Build evaluates a cluster.
func Build(c Cluster) Mesh {
	m := Mesh{Name: c.Name, Time: c.Time, Nodes: slices.Clone(c.Nodes), Peers: slices.Clone(c.Peers), mesh: c.Mesh}
	slices.SortFunc(m.Peers, func(a, b Peer) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(m.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	all, problems := meshNodes(m.Nodes), problems{}
	m.expected = make(map[string]expectation, len(m.Nodes))
	for i := 0; i < len(m.Nodes); i += m.stride() {
		m.expected[m.Nodes[i].Name] = expect(&m.Nodes[i], all, problems)
	}
	m.encrypts = m.anyEncryptsNodes()
	m.Findings = m.check(problems)
	return m
}

// find returns the node of that name, or nil.
func (m *Mesh) find(name string) *Node {
	i, found := slices.BinarySearchFunc(m.Nodes, name, func(n Node, name string) int { return cmp.Compare(n.Name, name) })
	if !found {
		return nil
	}
	return &m.Nodes[i]
}

func (m *Mesh) stride() int {
	if len(m.Nodes) <= maxWhole {
		return 1
	}
	return len(m.Nodes) / sampledNodes
}

// meshNodes returns the nodes as agents see them. Nodes without a published key cannot be peers. They lose their agent here,
// and have a finding of their own.
func meshNodes(nodes []Node) (all []mesh.Node) {
	for i := range nodes {
		n := nodes[i].Node
		if nodes[i].Origin == NoNode {
			continue
		}
		if nodes[i].Origin != Whole || nodes[i].lacksKey() {
			n.Agent = nil
		}
		all = append(all, n)
	}
	return all
}

// lacksKey reports whether only a key is missing for the node to be a peer.
func (n *Node) lacksKey() bool {
	return n.Agent != nil && n.Agent.Mode == mesh.ModeMesh && n.Agent.Key.IsZero()
}

// participates reports whether the node has a working agent.
func (n *Node) participates() bool {
	return n.Origin == Whole && n.Agent != nil && !n.OptOut && !n.lacksKey()
}

// problems counts, by problem, the nodes that find it.
type problems map[mesh.Problem]int

// expect computes what one node should have, and collects the problems that it finds.
func expect(n *Node, all []mesh.Node, found problems) (s expectation) {
	if !n.participates() {
		return s
	}
	if n.Agent.Mode == mesh.ModeSpread {
		plan := mesh.Spread(n.Name, all, true)
		found.add(plan.Problems)
		return expectation{len(plan.Peers), plan.SpreadsTo()}
	}
	plan, err := mesh.Tunnel(n.Name, all, mesh.TunnelConfig{Cleartext: true}) // the setting affects routes only
	if err != nil {
		return s
	}
	found.add(plan.Problems)
	peers := map[string]bool{} // a node with two keys is there twice
	for i := range plan.Peers {
		peers[plan.Peers[i].Node] = true
	}
	return expectation{len(peers), len(peers)}
}

func (p problems) add(found []mesh.Problem) {
	for _, f := range found {
		p[f]++
	}
}

// Filter returns the mesh with only the wanted nodes, and their findings.
func (m Mesh) Filter(wanted func(name string) bool) Mesh {
	m.Nodes = slices.DeleteFunc(slices.Clone(m.Nodes), func(n Node) bool { return !wanted(n.Name) })
	m.Findings = slices.DeleteFunc(slices.Clone(m.Findings), func(f Finding) bool { return !slices.ContainsFunc(f.Nodes, wanted) })
	return m
}
