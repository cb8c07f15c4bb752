// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/test/expect"
)

// locate labels the node.
func (n *node) locate(location string) {
	n.l.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, v1alpha1.LabelLocation, location)
	_, err := n.l.clients.CoreV1().Nodes().Patch(n.l.Context(), n.name, types.MergePatchType, patch, metav1.PatchOptions{})
	expect.NoError(n.l, err)
}

// separate makes the node drop all packets for the addresses of others.
func (n *node) separate(others ...*node) {
	n.l.Helper()
	for _, o := range others {
		for _, a := range o.addrs() {
			expect.NoError(n.l, n.host.Do(func() error {
				return netlink.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}, Type: unix.RTN_BLACKHOLE})
			}))
		}
	}
}

// newSites returns a lab with two sites: node-1 to node-3, of which the first two are gateways, and the gateway node-4 with node-5. Only
// gateways reach the other site.
func newSites(t *testing.T) (*lab, []*pod) {
	t.Helper()
	l := layLab(t, 5, true)
	l.applyFile(kustomized("mesh")) // the rights of agents in this mode
	var pods []*pod
	for _, n := range l.nodes {
		pods = append(pods, n.addPod())
	}
	l.openly(pods)
	a, b := l.nodes[:3], l.nodes[3:]
	a[2].separate(b...)
	b[1].separate(a...)
	for _, g := range a[:2] {
		expect.NoError(l, g.ask(map[string]any{"gatewayOf": "east"}))
	}
	expect.NoError(l, b[0].ask(map[string]any{"gatewayOf": "west"}))
	a[2].locate("east")
	b[1].locate("west")
	return l, pods
}

// awaitPeers waits until the nodes have these numbers of peers, and reach all others.
func (l *lab) awaitPeers(want ...int) {
	l.Helper()
	for i, n := range l.nodes {
		n.shows(fmt.Sprintf("ropewalk_agent_peers %d\n", want[i]))
		n.shows(fmt.Sprintf("ropewalk_agent_nodes_behind_gateways %d\n", len(l.nodes)-1-want[i]))
		n.shows("ropewalk_agent_nodes_without_tunnel 0\n")
	}
}

func TestGatewaysForwardBetweenLocationsAndFailOver(t *testing.T) {
	l, pods := newSites(t)
	for _, n := range l.nodes {
		n.startMesh("--pod-cidr", pods6)
	}
	l.awaitPeers(3, 3, 2, 3, 1)
	expect.EventuallyNoError(t, "mesh check finds no problems", func() (err error) { // some warnings are published late
		if out, _ := l.runMesh("check", "--kubeconfig="+l.kubeconfig(l.cfg.BearerToken)); out != "no problems found\n" {
			err = errors.New(out)
		}
		return err
	})
	e := l.eavesdrop()
	l.reach(pods)
	l.reach(six(pods))
	expect.NoError(t, pods[2].exchange(pods[4])) // by node-1 and node-4
	expect.NoError(t, pods[4].exchange(pods[1]))

	// A gateway fails: the other one, which does not hear it any more, takes over.
	l.nodes[0].kill()
	l.reach(pods[1:])
	l.reach(six(pods)[1:])
	expect.NoError(t, pods[4].exchange(pods[2]))
	expect.EventuallyNoError(t, "node-2 reports that it does not reach node-1", func() error {
		st, err := l.status("node-2")
		if err == nil && (st.Gateway == nil || !slices.Equal(st.Gateway.Unreachable, []string{"node-1"})) {
			err = fmt.Errorf("gateway %+v", st.Gateway)
		}
		return err
	})

	// It returns, and carries again once it has been heard for a while.
	l.nodes[0].startMesh("--pod-cidr", pods6)
	l.reach(pods)
	expect.EventuallyNoError(t, "node-2 reports that it reaches node-1", func() error {
		st, err := l.status("node-2")
		if err == nil && (st.Gateway == nil || len(st.Gateway.Unreachable) > 0) {
			err = fmt.Errorf("gateway %+v", st.Gateway)
		}
		return err
	})
	l.reach(pods)

	// A gateway that may not forward reports it, and is none: nodes then reach each other directly, where they can.
	west := l.nodes[3]
	expect.NoError(t, west.host.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/conf/"+west.tunnel()+"/forwarding", []byte("0"), 0)
	}))
	west.observes(map[string]any{"gatewayOf": "west", "mtu": int64(1400)})
	l.awaitPeers(4, 4, 4, 4, 4)
	west.reportsReady("this node is no gateway of its location west: IPv4 packets are not forwarded")
	l.refused(pods[2], pods[4])
	e.stop(l)
	if e.seen() < 100 {
		t.Errorf("only %d encrypted messages were seen", e.seen())
	}
}

// TestTrafficBetweenNodesTakesGateways has nodes that reach others only by gateways, and encrypt traffic between nodes.
func TestTrafficBetweenNodesTakesGateways(t *testing.T) {
	l, pods := newSites(t)
	for _, o := range manifest(l.api, "testdata/everything.yaml") { // the right to read the API server's EndpointSlice
		if o.GetKind() == "Role" {
			expect.NoError(l, l.apply(o))
		}
	}
	l.addAPIServer()
	for _, n := range l.nodes {
		n.startMesh(encryptNodes()...)
	}
	l.awaitPeers(3, 3, 2, 3, 1)
	for _, n := range l.nodes {
		n.shows("ropewalk_agent_node_routes 8\n")
		n.shows("ropewalk_agent_cleartext 0\n")
	}
	e := l.eavesdropOn(inspectNodes)
	hosts := l.hosts(false)
	l.reach(hosts)
	l.reach(l.hosts(true))
	expect.NoError(t, hosts[2].exchange(hosts[4]))
	expect.NoError(t, pods[2].exchange(pods[4]))
	e.stop(l)
	if e.seen() < 100 {
		t.Errorf("only %d encrypted messages were seen", e.seen())
	}
}

// reportsReady waits until the node's condition Ready has a text.
func (n *node) reportsReady(text string) {
	n.l.Helper()
	expect.EventuallyNoError(n.l, n.name+" reports: "+text, func() error {
		st, err := n.l.status(n.name)
		if err == nil && (len(st.Conditions) != 1 || !strings.Contains(st.Conditions[0].Message, text)) {
			err = errors.New(fmt.Sprint(st.Conditions))
		}
		return err
	})
}

// TestNodesBehindDifferentNATsUseGateways has a node behind each of two NATs, which do not reach each other. A node outside is the gateway of
// one of them.
func TestNodesBehindDifferentNATsUseGateways(t *testing.T) {
	l := newLab(t, 1)
	l.applyFile(kustomized("mesh")) // the rights of agents in this mode
	l.putConfig("nat", map[string]any{"persistentKeepalive": int64(1)})
	home := l.addNodeBehind(l.addNAT("nat1", natAddr, "10.1.0.254"), 2, "10.1.0.2", "10.1.0.254")
	office := l.addNodeBehind(l.addNAT("nat2", "192.0.2.51", "10.2.0.254"), 3, "10.2.0.3", "10.2.0.254")
	var pods []*pod
	for _, n := range l.nodes {
		pods = append(pods, n.addPod())
		n.startMesh()
	}
	l.awaitPeers(2, 2, 2)
	expect.EventuallyNoError(t, "the node outside is reached", func() error { return errors.Join(pods[1].ping(pods[0]), pods[2].ping(pods[0])) })
	l.refused(pods[1], pods[2])

	home.locate("home")
	expect.NoError(t, l.nodes[0].ask(map[string]any{"gatewayOf": "home"}))
	expect.NoError(t, office.ask(map[string]any{"gatewayOf": "office"}))
	l.awaitPeers(2, 1, 1)
	e := l.eavesdrop()
	l.reach(pods)
	expect.NoError(t, pods[1].exchange(pods[2]))
	e.stop(l)
	if e.seen() < 100 {
		t.Errorf("only %d encrypted messages were seen", e.seen())
	}
}
