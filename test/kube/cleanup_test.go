// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/test/expect"
)

// TestCleanupTakesTunnelOver cleans up beside running agents that permit cleartext, as the chart does, while pods have traffic.
func TestCleanupTakesTunnelOver(t *testing.T) {
	bpf := mountBPF(t)
	l, pods := newMesh(t, 2)
	for _, n := range l.nodes {
		n.stop()
		n.startMesh("--cleartext=always")
	}
	l.reach(pods)
	b := l.burden("cleanup beside an agent", pods[0], pods[1])
	b.carries()
	for _, n := range l.nodes {
		old := n.replaceByCleanup(bpf)
		b.carries()
		old.cancel()
		<-old.done
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
	bpf := mountBPF(t)
	l, pods := newMesh(t, 2)
	l.reach(pods)
	e := l.eavesdrop()
	for _, n := range l.nodes {
		old := n.replaceByCleanup(bpf)
		old.cancel()
		<-old.done
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

// replaceByCleanup runs the cleanup beside the node's agent until it reports ready, and returns the agent, which stands by.
func (n *node) replaceByCleanup(bpf string) (old *agent) {
	n.l.Helper()
	old = n.agent
	n.l.Cleanup(old.cancel)
	n.agent = nil
	n.start("cleanup", "--stay", "--key-dir", n.keys, "--tunnel", n.tunnel(), "--bpf-fs", bpf)
	for _, c := range []struct {
		of   *agent
		text string
	}{{n.agent, "tunnel taken over from another agent"}, {old, "standing by"}, {n.agent, "cleanup completed"}} {
		expect.EventuallyNoError(n.l, n.name+" logs "+c.text, func() error {
			if !strings.Contains(c.of.log.String(), c.text) {
				return errors.New(c.of.log.String())
			}
			return nil
		})
	}
	return old
}
