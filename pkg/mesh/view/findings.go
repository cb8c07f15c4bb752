// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/mesh"
)

// Severity is how bad it is.
type Severity string

// The severities.
const (
	Failed  Severity = "failed"  // traffic is lost, or not encrypted
	Warning Severity = "warning" // it works, and is slower or more fragile than need be
)

// Finding is something that is not as it should be, on one node or on several.
type Finding struct {
	Severity Severity
	// Check is the kind of finding, for programs: agent, conditions, handshakes, key, kubelet, mode, mtu, nodes, owner, peers,
	// plan, pods, spec, spread.
	Check string
	Nodes []string // by name
	Found string
	Fix   string // what helps, "" where that goes without saying
}

// agentStartGrace is how old a node is at most for it to be forgiven that its agent does not run yet.
const agentStartGrace = 2 * time.Minute

// checker collects findings. Those that differ in nothing but the node are one.
type checker struct {
	m     *Mesh
	found problems
	at    map[[3]string]int
	list  []Finding
}

func (m *Mesh) check(found problems) []Finding {
	e := &checker{m: m, found: found, at: map[[3]string]int{}}
	e.checkCluster()
	for i := range m.Nodes {
		e.checkNode(&m.Nodes[i])
	}
	e.checkModes()
	e.checkMTUs()
	for p := range found {
		e.add(Failed, "plan", p.Node, "others say: "+p.Reason, "")
	}
	for i := range e.list {
		slices.Sort(e.list[i].Nodes)
	}
	slices.SortFunc(e.list, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Check, b.Check), slices.Compare(a.Nodes, b.Nodes), cmp.Compare(a.Found, b.Found))
	})
	return e.list
}

func (e *checker) add(s Severity, check, node, found, mend string) {
	key := [3]string{string(s), check, found}
	i, known := e.at[key]
	if !known {
		i = len(e.list)
		e.at[key] = i
		e.list = append(e.list, Finding{Severity: s, Check: check, Found: found, Fix: mend})
	}
	if node != "" {
		e.list[i].Nodes = append(e.list[i].Nodes, node)
	}
}

// checkCluster is about a cluster that nothing has been installed in.
func (e *checker) checkCluster() {
	switch {
	case len(e.m.Nodes) == 0:
		e.add(Failed, "nodes", "", "the cluster has no nodes", "")
	case !slices.ContainsFunc(e.m.Nodes, func(n Node) bool { return n.Reported.Mode != "" }):
		e.add(Failed, "agent", "", "no node's agent has told anything", "kubectl get daemonsets,pods -A | grep ropewalk-agent")
	}
}

func (e *checker) checkNode(n *Node) {
	switch n.Origin {
	case NoNode:
		e.add(Warning, "owner", n.Name, "there is a RopewalkNode, and no Node of that name", "kubectl delete ropewalknode "+n.Name+" if it stays")
		return
	case OtherOwner:
		e.add(Failed, "owner", n.Name, "the RopewalkNode is of an earlier node of that name: nobody believes it", "kubectl delete ropewalknode "+n.Name)
		return
	}
	if n.OptOut {
		return
	}
	if n.Kubelet == No {
		e.add(Warning, "kubelet", n.Name, "the node is not ready: what its agent has told may be of before", "kubectl describe node "+n.Name)
	}
	if n.Origin == NoAgent || n.Reported.Mode == "" {
		e.checkMissingAgent(n)
		return
	}
	e.checkCondition(n)
	e.checkReported(n)
	e.checkPeers(n)
}

// checkMissingAgent is about a node whose agent has told nothing.
func (e *checker) checkMissingAgent(n *Node) {
	mend := "kubectl get pods -A -o wide --field-selector spec.nodeName=" + n.Name + " | grep ropewalk-agent"
	switch {
	case n.Reported.Ready == No:
		e.checkCondition(n)
	case e.m.Time.Sub(n.Created) < agentStartGrace:
		e.add(Warning, "agent", n.Name, "the node is new, and its agent has told nothing yet", mend)
	case e.m.anyMesh():
		e.add(Failed, "agent", n.Name, "its agent has told nothing: there is no tunnel to its pods", mend)
	default:
		e.add(Warning, "agent", n.Name, "its agent has told nothing: nobody spreads towards it", mend)
	}
}

func (m *Mesh) anyMesh() bool {
	return slices.ContainsFunc(m.Nodes, func(n Node) bool { return n.Reported.Mode == mesh.ModeMesh })
}

// checkCondition is about what the agent itself says.
func (e *checker) checkCondition(n *Node) {
	switch message := e.ownNotes(n); {
	case n.Reported.Ready == No:
		e.add(Failed, "conditions", n.Name, "its agent could not do all: "+n.Reported.Message, "")
	case n.Reported.Ready == Unknown:
		e.add(Warning, "conditions", n.Name, "its agent does not say whether all is well", "")
	case message != "":
		e.add(Warning, "conditions", n.Name, "its agent notes: "+message, "")
	}
}

// ownNotes is what of a node's message others do not say of it, too.
func (e *checker) ownNotes(n *Node) string {
	var rest []string
	for note := range strings.SplitSeq(n.Reported.Message, "; ") {
		if note = strings.TrimSpace(note); note != "" && e.found[mesh.Problem{Node: n.Name, Reason: note}] == 0 {
			rest = append(rest, note)
		}
	}
	return strings.Join(rest, "; ")
}

// checkReported is about a node alone.
func (e *checker) checkReported(n *Node) {
	if n.lacksKey() {
		e.add(Failed, "key", n.Name, "it has told no key: there is no tunnel to its pods", "kubectl get ropewalknode "+n.Name+" -o yaml")
	}
	if n.Reported.ObservedGeneration < n.Reported.Generation {
		e.add(Warning, "spec", n.Name, "its agent has not done yet what the spec says", "")
	}
	if len(n.Reported.PodCIDRs) > 0 && !sameCIDRs(n) {
		e.add(Warning, "pods", n.Name, "its agent tells of other pod CIDRs than the Node has: others go by the Node's", "")
	}
	if n.Agent != nil && n.Agent.Mode == mesh.ModeSpread && !n.Agent.Gathers && n.Reported.Ready != No {
		e.add(Warning, "spread", n.Name, "it does not gather: nobody spreads towards it", "ropewalk spread status, on the node")
	}
}

func sameCIDRs(n *Node) bool {
	told := slices.Clone(n.Reported.PodCIDRs)
	var has []string
	for _, p := range n.PodCIDRs {
		has = append(has, p.String())
	}
	slices.Sort(told)
	slices.Sort(has)
	return slices.Equal(told, has)
}

// checkPeers is about a node and its peers.
func (e *checker) checkPeers(n *Node) {
	if stale := n.Reported.Unresponsive; stale.Count > 0 {
		text := strings.Join(stale.Nodes, ", ")
		if more := stale.Count - len(stale.Nodes); more > 0 && text != "" {
			text += fmt.Sprintf(" and %d more", more)
		} else if text == "" {
			text = plural(stale.Count, "peer")
		}
		e.add(e.unresponsiveSeverity(stale), "handshakes", n.Name, "no answer to its handshakes from "+text,
			"does UDP pass between the two, at the port of status.endpoints? Does the other's agent run?")
	}
	s, looked := e.m.expected[n.Name]
	if !looked || !n.participates() {
		return
	}
	if n.Reported.Peers != s.count {
		e.add(Warning, "peers", n.Name, fmt.Sprintf("it has %s, and should have %d", plural(n.Reported.Peers, "peer"), s.count), "")
	}
	if n.Agent.Mode == mesh.ModeSpread && n.Reported.SpreadsTo < s.spreads {
		e.add(Warning, "spread", n.Name, fmt.Sprintf("it spreads towards %d of %s that gather", n.Reported.SpreadsTo, plural(s.spreads, "node")), "")
	}
}

// unresponsiveSeverity is no failure where all that do not answer are known to be away.
func (e *checker) unresponsiveSeverity(s UnresponsivePeers) Severity {
	away := func(name string) bool {
		n := e.m.find(name)
		return n == nil || n.Kubelet == No
	}
	for _, name := range s.Nodes {
		if !away(name) {
			return Failed
		}
	}
	if s.Count > len(s.Nodes) {
		return Failed
	}
	return Warning
}

// checkModes is about nodes that do something else than the others.
func (e *checker) checkModes() {
	count := map[string]int{}
	for i := range e.m.Nodes {
		if n := &e.m.Nodes[i]; n.participates() {
			count[string(n.Agent.Mode)]++
		}
	}
	usual := mostCommon(count)
	for i := range e.m.Nodes {
		if n := &e.m.Nodes[i]; n.participates() && string(n.Agent.Mode) != usual {
			e.add(Warning, "mode", n.Name, fmt.Sprintf("it is in the mode %s, and most others are in %s: there is no tunnel of ropewalk's to those",
				n.Agent.Mode, usual), "kubectl get ropewalknodes -o custom-columns=NAME:.metadata.name,MODE:.spec.mode")
		}
	}
}

// checkMTUs is about tunnels of different sizes.
func (e *checker) checkMTUs() {
	count := map[int]int{}
	for i := range e.m.Nodes {
		if n := &e.m.Nodes[i]; n.participates() && n.Reported.MTU != 0 {
			count[n.Reported.MTU]++
		}
	}
	usual := mostCommon(count)
	for i := range e.m.Nodes {
		n := &e.m.Nodes[i]
		if !n.participates() || n.Reported.MTU == 0 {
			continue
		}
		if n.Reported.MTU < mesh.MinMTU && slices.ContainsFunc(n.PodCIDRs, isIPv6) {
			e.add(Failed, "mtu", n.Name, fmt.Sprintf("its MTU is %d, and IPv6, which its pods have, needs %d", n.Reported.MTU, mesh.MinMTU), "")
		}
		if n.Reported.MTU != usual {
			e.add(Warning, "mtu", n.Name, fmt.Sprintf("its MTU is %d, and that of most others %d: packets that fit one end may not fit the other",
				n.Reported.MTU, usual), "the same spec.mtu, the smallest, for all")
		}
	}
}

func isIPv6(p netip.Prefix) bool { return !p.Addr().Is4() }

// mostCommon returns what there is most of; of several the smallest.
func mostCommon[K cmp.Ordered](count map[K]int) (usual K) {
	best := 0
	for k, n := range count {
		if n > best || n == best && k < usual {
			usual, best = k, n
		}
	}
	return usual
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
