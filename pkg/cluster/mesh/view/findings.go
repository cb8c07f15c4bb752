// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/proof"
)

// Severity is the severity of a finding.
type Severity string

// The severities.
const (
	Failed  Severity = "failed"  // traffic is lost or unencrypted
	Warning Severity = "warning" // traffic flows, but slower or less reliably than it could
)

// Finding is a problem of one or several nodes.
type Finding struct {
	Severity Severity `json:"severity"`
	// Check is the kind of finding, for programs: agent, conditions, encryption, external, handshakes, key, kubelet, mode, mtu, nodes, observed, owner, peers,
	// plan, pods, spec, spread.
	Check string   `json:"check"`
	Nodes []string `json:"nodes"` // by name
	Found string   `json:"found"`
	Fix   string   `json:"fix,omitempty"` // "" where it is obvious
}

// agentStartGrace is the age up to which a node without a running agent is only a warning.
const agentStartGrace = 2 * time.Minute

// checker collects findings. It merges findings that differ only in the node.
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
	e.checkEncryption()
	for _, p := range m.Peers {
		if p.Accepted == No {
			e.add(Failed, "external", "", "the RopewalkPeer "+p.Name+" is refused: "+p.Message, "kubectl edit ropewalkpeer "+p.Name)
		}
	}
	for p := range found {
		e.add(Failed, "plan", p.Node, "other nodes report: "+p.Reason, "")
	}
	for i := range e.list {
		slices.Sort(e.list[i].Nodes)
	}
	slices.SortFunc(e.list, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Check, b.Check), slices.Compare(a.Nodes, b.Nodes), cmp.Compare(a.Found, b.Found))
	})
	return e.list
}

func (c *checker) add(s Severity, check, node, found, fix string) {
	key := [3]string{string(s), check, found}
	i, known := c.at[key]
	if !known {
		i = len(c.list)
		c.at[key] = i
		c.list = append(c.list, Finding{Severity: s, Check: check, Nodes: []string{}, Found: found, Fix: fix})
	}
	if node != "" {
		c.list[i].Nodes = append(c.list[i].Nodes, node)
	}
}

// checkCluster finds a cluster without nodes or agents.
func (c *checker) checkCluster() {
	switch {
	case len(c.m.Nodes) == 0:
		c.add(Failed, "nodes", "", "the cluster has no nodes", "")
	case !slices.ContainsFunc(c.m.Nodes, func(n Node) bool { return n.Reported.Mode != "" }):
		c.add(Failed, "agent", "", "no node's agent has published a status", `kubectl get daemonsets,pods -A -l "app.kubernetes.io/name in (ropewalk-spread,ropewalk-mesh)"`)
	}
}

func (c *checker) checkNode(n *Node) {
	switch n.Origin {
	case NoNode:
		c.add(Warning, "owner", n.Name, "its RopewalkNode or RopewalkAnnouncement has no Node of that name", "kubectl delete ropewalknodes,ropewalkannouncements "+n.Name+" if they stay")
		return
	case OtherOwner:
		c.add(Failed, "owner", n.Name, "its RopewalkNode or RopewalkAnnouncement belongs to an earlier node of that name: other nodes ignore it", "kubectl delete ropewalknodes,ropewalkannouncements "+n.Name)
		return
	}
	if n.OptOut {
		return
	}
	if n.Kubelet == No {
		c.add(Warning, "kubelet", n.Name, "the node is not ready: its agent's status may be outdated", "kubectl describe node "+n.Name)
	}
	if n.Origin == NoAgent || n.Reported.Mode == "" {
		c.checkMissingAgent(n)
		return
	}
	c.checkCondition(n)
	c.checkObserved(n)
	c.checkReported(n)
	c.checkPeers(n)
}

// checkMissingAgent finds a node whose agent has not published a status.
func (c *checker) checkMissingAgent(n *Node) {
	fix := agentPods(n.Name)
	switch {
	case n.Reported.Ready == No:
		c.checkCondition(n)
	case c.m.Time.Sub(n.Created) < agentStartGrace:
		c.add(Warning, "agent", n.Name, "the node is new, and its agent has not published a status yet", fix)
	case c.m.anyMesh():
		c.add(Failed, "agent", n.Name, "its agent has not published a status: there is no tunnel to its pods", fix)
	default:
		c.add(Warning, "agent", n.Name, "its agent has not published a status: no node spreads towards it", fix)
	}
}

// agentPods returns the command that shows the agent's pod on a node.
func agentPods(node string) string {
	return "kubectl get pods -A -o wide --field-selector spec.nodeName=" + node + " | grep ropewalk-"
}

func (m *Mesh) anyMesh() bool {
	return slices.ContainsFunc(m.Nodes, func(n Node) bool { return n.Reported.Mode == mesh.ModeMesh })
}

// checkCondition reports the agent's own Ready condition.
func (c *checker) checkCondition(n *Node) {
	switch message := c.ownNotes(n); {
	case n.Reported.Ready == No:
		c.add(Failed, "conditions", n.Name, "its agent's last reconcile failed: "+n.Reported.Message, "")
	case n.Reported.Ready == Unknown:
		c.add(Warning, "conditions", n.Name, "its agent has not published a Ready condition", "")
	case message != "":
		c.add(Warning, "conditions", n.Name, "its agent warns: "+message, "")
	}
}

// checkObserved reports observations of the node's tunnel and of the packets that leave it. A
// permissive node is a choice, or a rollout. Where Strict is unknown, Encrypted is unknown as well.
func (c *checker) checkObserved(n *Node) {
	for _, o := range n.Reported.Observed {
		switch {
		case o.Type == proof.Strict:
		case o.Status == No && o.Type == proof.PostQuantum && o.Reason != proof.PostQuantumBlocked:
			c.add(Warning, "observed", n.Name, o.Type+" is false ("+o.Reason+"): "+o.Message, "")
		case o.Status == No:
			c.add(Failed, "observed", n.Name, o.Type+" is false ("+o.Reason+"): "+o.Message, "")
		case o.Status == Unknown && (o.Reason == proof.GuardMissing || o.Reason == proof.GuardNotInFront):
			c.add(Warning, "observed", n.Name, o.Type+" is unknown ("+o.Reason+"): "+o.Message, "")
		}
	}
}

// ownNotes returns the notes in a node's message that no other node's agent finds as well.
func (c *checker) ownNotes(n *Node) string {
	var rest []string
	for note := range strings.SplitSeq(n.Reported.Message, "; ") {
		note = strings.TrimSpace(note)
		if strings.HasPrefix(note, mesh.UnencryptedNote) && c.m.encrypts { // checkEncryption
			continue
		}
		if note != "" && c.found[mesh.Problem{Node: n.Name, Reason: note}] == 0 {
			rest = append(rest, note)
		}
	}
	return strings.Join(rest, "; ")
}

// checkReported checks the status of one node.
func (c *checker) checkReported(n *Node) {
	if n.lacksKey() {
		c.add(Failed, "key", n.Name, "it has not published a key: there is no tunnel to its pods", "kubectl get ropewalkannouncement "+n.Name+" -o yaml")
	}
	if m := c.m.mesh; m != nil && n.Reported.Mode == mesh.ModeMesh && !m.appliedBy(&n.Reported) {
		c.add(Warning, "spec", n.Name, fmt.Sprintf("its agent has not applied generation %d of the RopewalkMesh yet", m.Generation), agentPods(n.Name)+" # if this stays, see its log")
	}
	if n.Reported.ObservedGeneration < n.Reported.Generation {
		c.add(Warning, "spec", n.Name, "its agent has not applied the latest spec yet", agentPods(n.Name)+" # if this stays, see its log")
	}
	if len(n.Reported.PodCIDRs) > 0 && !sameCIDRs(n) {
		c.add(Warning, "pods", n.Name, "its agent has published other pod CIDRs than the Node has: other nodes use the Node's", "")
	}
	if n.Agent != nil && n.Agent.Mode == mesh.ModeSpread && !n.Agent.Gathers && n.Reported.Ready != No {
		c.add(Warning, "spread", n.Name, "it does not gather: no node spreads towards it", "ropewalk spread status, on the node")
	}
}

func sameCIDRs(n *Node) bool {
	reported := slices.Clone(n.Reported.PodCIDRs)
	var has []string
	for _, p := range n.PodCIDRs {
		has = append(has, p.String())
	}
	slices.Sort(reported)
	slices.Sort(has)
	return slices.Equal(reported, has)
}

// checkPeers checks a node's peers.
func (c *checker) checkPeers(n *Node) {
	if stale := n.Reported.Unresponsive; stale.Count > 0 {
		text := strings.Join(stale.Nodes, ", ")
		if more := stale.Count - len(stale.Nodes); more > 0 && text != "" {
			text += fmt.Sprintf(" and %d more", more)
		} else if text == "" {
			text = plural(stale.Count, "peer")
		}
		c.add(c.unresponsiveSeverity(stale), "handshakes", n.Name, "no answer to its handshakes from "+text,
			"check that UDP passes between the nodes, at the port of its announcement, and that the other node's agent runs")
	}
	s, known := c.m.expected[n.Name]
	if !known || !n.participates() {
		return
	}
	if n.Reported.Peers != s.peers {
		c.add(Warning, "peers", n.Name, fmt.Sprintf("it has %s, want %d", plural(n.Reported.Peers, "peer"), s.peers), "")
	}
	if n.Agent.Mode == mesh.ModeSpread && n.Reported.SpreadsTo < s.spreads {
		c.add(Warning, "spread", n.Name, fmt.Sprintf("it spreads towards %d of the nodes that gather, want %d", n.Reported.SpreadsTo, s.spreads),
			"ropewalk spread status, on the node")
	}
}

// unresponsiveSeverity returns Warning if all unresponsive peers are known to be down.
func (c *checker) unresponsiveSeverity(s UnresponsivePeers) Severity {
	away := func(name string) bool {
		n := c.m.find(name)
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

// checkModes finds nodes in another mode than most.
func (c *checker) checkModes() {
	count := map[string]int{}
	for i := range c.m.Nodes {
		if n := &c.m.Nodes[i]; n.participates() {
			count[string(n.Agent.Mode)]++
		}
	}
	usual := mostCommon(count)
	for i := range c.m.Nodes {
		if n := &c.m.Nodes[i]; n.participates() && string(n.Agent.Mode) != usual {
			c.add(Warning, "mode", n.Name, fmt.Sprintf("it is in %s mode, most others are in %s mode: ropewalk has no tunnel to those",
				n.Agent.Mode, usual), "kubectl get ropewalkannouncements")
		}
	}
}

// checkMTUs finds tunnels with another MTU than most.
func (c *checker) checkMTUs() {
	count := map[int]int{}
	for i := range c.m.Nodes {
		if n := &c.m.Nodes[i]; n.participates() && n.Reported.MTU != 0 {
			count[n.Reported.MTU]++
		}
	}
	usual := mostCommon(count)
	for i := range c.m.Nodes {
		n := &c.m.Nodes[i]
		if !n.participates() || n.Reported.MTU == 0 {
			continue
		}
		if n.Reported.MTU < mesh.MinMTU && slices.ContainsFunc(n.PodCIDRs, isIPv6) {
			c.add(Failed, "mtu", n.Name, fmt.Sprintf("its MTU is %d, but its pods have IPv6, which needs %d", n.Reported.MTU, mesh.MinMTU), "")
		}
		if n.Reported.MTU != usual {
			c.add(Warning, "mtu", n.Name, fmt.Sprintf("its MTU is %d, that of most others %d: packets that fit one end may not fit the other",
				n.Reported.MTU, usual), "set mtu of all pools of the RopewalkMesh to the smallest one")
		}
	}
}

func isIPv6(p netip.Prefix) bool { return !p.Addr().Is4() }

// mostCommon returns the most frequent key, and of several the smallest.
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
