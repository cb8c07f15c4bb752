// SPDX-License-Identifier: Apache-2.0

package kube

import "testing"

// TestCleanupLosesNoPackets cleans up nodes that permit cleartext, as the chart does, while pods have traffic.
func TestCleanupLosesNoPackets(t *testing.T) {
	l, pods := newMesh(t, 2)
	l.setMesh(map[string]any{"cleartext": "Always"})
	for _, n := range l.nodes {
		n.shows("ropewalk_agent_cleartext 1\n")
	}
	l.reach(pods)
	b := l.burden("cleanup in the place of agents", pods[0], pods[1])
	b.carries()
	for _, n := range l.nodes {
		n.replaceByCleanup()
		b.carries()
	}
	b.finish()
	for _, n := range l.nodes {
		n.stop()
		if n.ruled() || n.lostRoutes() != 0 {
			t.Errorf("%s: rule left: %v, %d routes of the plugin missing", n.name, n.ruled(), n.lostRoutes())
		}
	}
	l.reach(pods)
}

// TestCleanupOfStrictNodesSendsNoCleartext cleans up nodes that refuse cleartext, one after the other.
func TestCleanupOfStrictNodesSendsNoCleartext(t *testing.T) {
	l, pods := newMesh(t, 2)
	l.reach(pods)
	e := l.eavesdrop()
	for _, n := range l.nodes {
		n.replaceByCleanup()
		l.refused(pods[0], pods[1])
		l.refused(pods[1], pods[0])
	}
	e.stop(l)
	for _, n := range l.nodes {
		n.stop()
		if n.ruled() {
			t.Errorf("%s: rule left", n.name)
		}
	}
	l.reach(pods)
}

// replaceByCleanup runs the cleanup in the place of the node's agent until it reports ready. The engine waits for another configuration then.
func (n *node) replaceByCleanup() {
	n.l.Helper()
	n.stop()
	n.start("cleanup", "--stay", "--key-dir", n.keys, "--engine-config", n.engineConfig(), "--tunnel", n.tunnel(), "--bpf-fs", n.l.bpf)
	n.l.logs(n.agent, "cleanup completed")
	n.l.logs(n.engine, "configuration file does not exist, waiting")
}
