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
	Name  string
	Time  time.Time
	Nodes []Node // by name
	// Links are those between any two nodes that did not opt out, by names; nil with more than MaxLinked nodes.
	Links    []Link
	Findings []Finding // the worst first
	Peers    []Peer    // by name; nil: unknown
	expected map[string]expectation
	encrypts bool        // some node encrypts traffic between nodes
	mesh     *MeshObject // nil: none is known
}

// MaxLinked is the maximum number of nodes for which each pair is evaluated. The cost grows with the cube of the number.
const MaxLinked = 500

// sampledNodes is the number of nodes whose peers are computed in a larger cluster.
const sampledNodes = 50

// Link is a pair of nodes.
type Link struct {
	A    string    `json:"a"`
	B    string    `json:"b"` // behind A
	Kind Kind      `json:"kind"`
	AToB Direction `json:"a_to_b"`
	BToA Direction `json:"b_to_a"`
}

// Direction is one direction of a link.
type Direction struct {
	Peer         bool     `json:"peer"`    // the other is a peer
	Spreads      Tristate `json:"spreads"` // flows are spread towards the other
	Unresponsive bool     `json:"stale"`   // the other does not answer handshakes
}

// Kind is the state of a link.
type Kind string

// The kinds.
const (
	SpreadBothWays Kind = "spread"         // both spread towards each other
	SpreadOneWay   Kind = "spread-one-way" // one of them does
	Tunnel         Kind = "tunnel"         // neither is known to
	StaleHandshake Kind = "stale"          // one gets no answer to its handshakes
	NoTunnel       Kind = "none"           // they are not each other's peers
)

// expectation is the state that one node should have, by its agent's rules.
type expectation struct {
	peers   map[string]bool // value: it would spread towards the peer
	count   int             // of peers
	spreads int             // number of nodes that it should spread towards
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
	if m.hasLinks() {
		m.buildLinks()
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

// hasLinks reports whether each pair of nodes is evaluated.
func (m *Mesh) hasLinks() bool { return len(m.Nodes) <= MaxLinked }

func (m *Mesh) stride() int {
	if m.hasLinks() {
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
func expect(n *Node, all []mesh.Node, found problems) expectation {
	s := expectation{peers: map[string]bool{}}
	if !n.participates() {
		return s
	}
	if n.Agent.Mode == mesh.ModeSpread {
		plan := mesh.Spread(n.Name, all, true)
		for i := range plan.Peers {
			s.peers[plan.Peers[i].Node] = plan.Peers[i].Spread
		}
		found.add(plan.Problems)
		s.count, s.spreads = len(plan.Peers), plan.SpreadsTo()
		return s
	}
	plan, err := mesh.Tunnel(n.Name, all, mesh.TunnelConfig{Cleartext: true}) // the setting affects routes only
	if err != nil {
		return s
	}
	for i := range plan.Peers {
		s.peers[plan.Peers[i].Node] = true
	}
	found.add(plan.Problems)
	s.count, s.spreads = len(s.peers), len(s.peers)
	return s
}

func (p problems) add(found []mesh.Problem) {
	for _, f := range found {
		p[f]++
	}
}

// buildLinks evaluates each pair of nodes.
func (m *Mesh) buildLinks() {
	m.Links = []Link{}
	for i := range m.Nodes {
		for j := i + 1; j < len(m.Nodes); j++ {
			a, b := &m.Nodes[i], &m.Nodes[j]
			if a.OptOut || b.OptOut || a.Origin == NoNode || b.Origin == NoNode {
				continue
			}
			l := Link{A: a.Name, B: b.Name, AToB: m.direction(a, b), BToA: m.direction(b, a)}
			l.Kind = l.kind()
			m.Links = append(m.Links, l)
		}
	}
}

// direction evaluates one node's side of a link.
func (m *Mesh) direction(from, to *Node) Direction {
	s := m.expected[from.Name]
	would, isPeer := s.peers[to.Name]
	stale := from.Reported.Unresponsive
	w := Direction{Peer: isPeer, Spreads: No, Unresponsive: isPeer && slices.Contains(stale.Nodes, to.Name)}
	switch {
	case !would || from.Reported.SpreadsTo == 0:
	case from.Reported.SpreadsTo < s.spreads, // it spreads towards some, but the status does not tell which
		stale.mayInclude(to.Name):
		w.Spreads = Unknown
	default:
		w.Spreads = Yes
	}
	return w
}

func (l *Link) kind() Kind {
	there, back := l.AToB.Spreads == Yes, l.BToA.Spreads == Yes
	switch {
	case !l.AToB.Peer || !l.BToA.Peer:
		return NoTunnel
	case l.AToB.Unresponsive || l.BToA.Unresponsive:
		return StaleHandshake
	case there && back:
		return SpreadBothWays
	case there || back:
		return SpreadOneWay
	}
	return Tunnel
}

// Filter returns the mesh with only the wanted nodes, their links and the nodes at the other ends.
func (m Mesh) Filter(wanted func(name string) bool) Mesh {
	ends := map[string]bool{}
	m.Links = slices.DeleteFunc(slices.Clone(m.Links), func(l Link) bool {
		keep := wanted(l.A) || wanted(l.B)
		ends[l.A] = ends[l.A] || keep
		ends[l.B] = ends[l.B] || keep
		return !keep
	})
	m.Nodes = slices.DeleteFunc(slices.Clone(m.Nodes), func(n Node) bool { return !ends[n.Name] && !wanted(n.Name) })
	m.Findings = slices.DeleteFunc(slices.Clone(m.Findings), func(f Finding) bool { return !slices.ContainsFunc(f.Nodes, wanted) })
	return m
}
