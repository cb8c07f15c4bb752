// SPDX-License-Identifier: Apache-2.0

package view

import "strings"

// forwards reports whether the node is a gateway that forwards for its location.
func (n *Node) forwards() bool { return n.participates() && n.GatewayOf != "" && n.Agent.Forwards }

// unreachableGateways returns the other gateways of its location from which a gateway receives nothing.
func (n *Node) unreachableGateways() []string {
	if !n.forwards() {
		return nil
	}
	return n.Agent.Unreachable
}

// locationText returns the node's location, and whether it is a gateway; "" without one.
func (n *Node) locationText() string {
	switch {
	case !n.participates():
		return ""
	case n.forwards():
		return n.Location() + " (gateway)"
	case n.GatewayOf != "":
		return n.GatewayOf + " (does not forward)"
	}
	return n.Location()
}

// checkGateways finds gateways that do not reach each other, and nodes in a location without a gateway while others have one: a mistyped location is
// such a one.
func (c *checker) checkGateways() {
	served := map[string]bool{}
	for i := range c.m.Nodes {
		if n := &c.m.Nodes[i]; n.forwards() {
			served[n.GatewayOf] = true
		}
	}
	for i := range c.m.Nodes {
		n := &c.m.Nodes[i]
		if n.participates() && n.Location() != "" && !served[n.Location()] && len(served) > 0 {
			c.add(Warning, "gateways", n.Name, "its location "+n.Location()+" has no gateway, and others have: it is a peer of all nodes",
				"kubectl get ropewalknodes -o custom-columns=NAME:.metadata.name,LOCATION:.status.location,GATEWAY:.spec.gatewayOf")
		}
		if names := n.unreachableGateways(); len(names) > 0 {
			c.add(Warning, "gateways", n.Name, "nothing arrives from other gateways of its location: "+strings.Join(names, ", "),
				"check that their agents run, and that UDP passes between the gateways, at the port in status.endpoints")
		}
	}
}
