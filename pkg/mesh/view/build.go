// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/mesh"
)

// Mesh is what there is to see of a cluster.
type Mesh struct {
	Name  string
	Time  time.Time
	Nodes []Node // by name
	// Links are those between any two nodes that administrators have not left out, by names. None where there are more than
	// MaxLinked nodes.
	Links    []Link
	Findings []Finding // the worst first
	expected map[string]expectation
}

// MaxLinked bounds the nodes of which each pair is looked at: that grows with the cube of their number.
const MaxLinked = 500

// sampledNodes are as many nodes' eyes as a larger cluster is looked at with.
const sampledNodes = 50

// Link is a pair of nodes.
type Link struct {
	A, B string // A is before B
	Kind Kind
	// AToB is from A to B, Back from B to A.
	AToB, BToA Direction
}

// Direction is one direction of a link.
type Direction struct {
	Peer         bool     // the other is a peer
	Spreads      Tristate // flows are spread towards the other
	Unresponsive bool     // the other does not answer handshakes
}

// Kind is a link's state.
type Kind string

// The kinds, the best first.
const (
	SpreadBothWays Kind = "spread"         // both spread towards each other
	SpreadOneWay   Kind = "spread-one-way" // one of them does
	Tunnel         Kind = "tunnel"         // neither is known to
	StaleHandshake Kind = "stale"          // one does not get an answer to its handshakes
	NoTunnel       Kind = "none"           // they are not each other's peers
)

// Kinds returns all, the best first.
func Kinds() []Kind { return []Kind{SpreadBothWays, SpreadOneWay, Tunnel, StaleHandshake, NoTunnel} }

// expectation is what one node has of the others, as its agent decides it.
type expectation struct {
	peers   map[string]bool // true: it would spread towards it
	count   int             // of peers
	spreads int             // towards as many nodes, where all goes well
}

// Build returns what there is to see.
func Build(c Cluster) Mesh {
	m := Mesh{Name: c.Name, Time: c.Time, Nodes: slices.Clone(c.Nodes)}
	slices.SortFunc(m.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	all, problems := m.meshNodes(), problems{}
	m.expected = make(map[string]expectation, len(m.Nodes))
	for i := 0; i < len(m.Nodes); i += m.stride() {
		m.expected[m.Nodes[i].Name] = expect(&m.Nodes[i], all, problems)
	}
	if m.hasLinks() {
		m.buildLinks()
	}
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

// hasLinks tells whether all nodes are looked at from all.
func (m *Mesh) hasLinks() bool { return len(m.Nodes) <= MaxLinked }

func (m *Mesh) stride() int {
	if m.hasLinks() {
		return 1
	}
	return len(m.Nodes) / sampledNodes
}

// meshNodes are the nodes as the agents know them. Those that cannot take part because they have told no key are left out, and
// are found by what they lack.
func (m *Mesh) meshNodes() []mesh.Node {
	var all []mesh.Node
	for i := range m.Nodes {
		n := m.Nodes[i].Node
		if m.Nodes[i].Origin == NoNode {
			continue
		}
		if m.Nodes[i].Origin != Whole || m.Nodes[i].lacksKey() {
			n.Agent = nil
		}
		all = append(all, n)
	}
	return all
}

// lacksKey tells whether the node would be a peer if it had a key.
func (n *Node) lacksKey() bool {
	return n.Agent != nil && n.Agent.Mode == mesh.ModeMesh && n.Agent.Key.IsZero()
}

// participates tells whether the node has an agent that works.
func (n *Node) participates() bool {
	return n.Origin == Whole && n.Agent != nil && !n.OptOut && !n.lacksKey()
}

// problems are what agents find wrong with others, and how many of those who look do.
type problems map[mesh.Problem]int

// expect looks with one node's eyes.
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
	plan, err := mesh.Tunnel(n.Name, all, mesh.TunnelConfig{Cleartext: true}) // strictness is about routes
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

// buildLinks looks at each pair.
func (m *Mesh) buildLinks() {
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

// direction is what one node does towards another.
func (m *Mesh) direction(from, to *Node) Direction {
	s := m.expected[from.Name]
	would, isPeer := s.peers[to.Name]
	stale := from.Reported.Unresponsive
	w := Direction{Peer: isPeer, Spreads: No, Unresponsive: isPeer && slices.Contains(stale.Nodes, to.Name)}
	switch {
	case !would || from.Reported.SpreadsTo == 0:
	case from.Reported.SpreadsTo < s.spreads, // towards some, and it does not tell which
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

// Filter returns the same with the links of some nodes alone, and the nodes at their ends.
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

// Contains tells whether there is a node that is wanted.
func (m *Mesh) Contains(wanted func(name string) bool) bool {
	return slices.ContainsFunc(m.Nodes, func(n Node) bool { return wanted(n.Name) })
}
