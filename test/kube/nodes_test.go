// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/test/expect"
)

// clearPort is the port of an API server on node-1.
const clearPort = 6443

// addAPIServer has an API server on node-1, for which the test's one writes no EndpointSlice: its own address is a loopback address.
func (l *lab) addAPIServer() {
	l.Helper()
	slices, port := l.clients.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault), int32(clearPort)
	_, err := slices.Create(l.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{l.nodes[0].addr.String()}}}, Ports: []discoveryv1.EndpointPort{{Port: &port}},
	}, metav1.CreateOptions{})
	expect.NoError(l, err)
	l.Cleanup(func() { expect.NoError(l, slices.Delete(context.Background(), "kubernetes", metav1.DeleteOptions{})) })
}

// encryptNodes returns the settings of a cluster that encrypts traffic between nodes, but those with a label.
func encryptNodes() map[string]any {
	return map[string]any{"cleartext": "Auto", "nodeEncryption": map[string]any{
		"enabled": true, "nodeCIDRs": []any{"192.0.2.0/24", "2001:db8::/64"}, "clearNodes": map[string]any{"matchLabels": map[string]any{"clear": "yes"}},
	}}
}

// hosts returns the nodes themselves as if they were pods, with their IPv4 or IPv6 addresses.
func (l *lab) hosts(v6 bool) (all []*pod) {
	for _, n := range l.nodes {
		p := &pod{n: n, host: n.host, addr: n.addr, addr6: n.addr6}
		if v6 {
			p.addr = n.addr6
		}
		all = append(all, p)
	}
	return all
}

// inspectNodes is inspect, which also reports packets between nodes that are neither the tunnel's, nor those of clearPort, nor neighbor discovery.
func inspectNodes(b []byte) (why string, encrypted bool) {
	src, dst, payload, protocol := outer(b)
	if !isNode(src) || !isNode(dst) || len(payload) < 8 {
		return inspect(b)
	}
	sport, dport := binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:])
	switch {
	case protocol == unix.IPPROTO_UDP && (sport == port || dport == port):
		return inspect(b)
	case protocol == unix.IPPROTO_TCP && (sport == clearPort || dport == clearPort):
		return "", false
	case protocol == unix.IPPROTO_ICMPV6 && (payload[0] == 135 || payload[0] == 136):
		return "", false
	}
	return fmt.Sprintf("protocol %d from %s to %s, ports %d and %d", protocol, src, dst, sport, dport), false
}

// isNode reports whether a node has the address. The API server, on the same network, is no node.
func isNode(a netip.Addr) bool {
	return a.IsValid() && a.String() != apiAddr &&
		(netip.MustParsePrefix("192.0.2.0/24").Contains(a) || netip.MustParsePrefix("2001:db8::/64").Contains(a))
}

// TestTrafficBetweenNodesIsEncrypted covers nodes and pods in both IP versions, from the first agent to the end of encryption on a node.
func TestTrafficBetweenNodesIsEncrypted(t *testing.T) {
	l := layLab(t, 3, true)
	for _, o := range manifest(l.api, "testdata/everything.yaml") { // the right to read the API server's EndpointSlice
		if o.GetKind() == "Role" {
			expect.NoError(l, l.apply(o))
		}
	}
	l.addAPIServer()
	var pods []*pod
	for _, n := range l.nodes {
		p := n.addPod()
		for _, to := range []string{"192.0.2.0/24", "2001:db8::/64"} {
			gateway := n.pods.Addr().Next()
			if strings.Contains(to, "::") {
				gateway = n.pods6.Addr().Next()
			}
			expect.NoError(l, p.host.RouteVia(netip.MustParsePrefix(to), gateway))
		}
		pods = append(pods, p)
	}
	l.setMesh(encryptNodes())
	for i, n := range l.nodes {
		n.startMesh()
		expect.EventuallyNoError(l, "the agents know each other", func() error {
			for _, o := range l.nodes[:i+1] {
				if _, err := o.metrics(); err != nil {
					return err
				}
				if routes := o.gauge("node_routes"); routes != 2*i {
					return fmt.Errorf("%s has %d routes to nodes", o.name, routes)
				}
			}
			return nil
		})
		l.reach(l.hosts(false))
		l.reach(l.hosts(true))
	}
	l.reports(l.nodes, "Strict", metav1.ConditionTrue, "Latched", func() { l.reach(pods) })
	for _, n := range l.nodes {
		n.shows("ropewalk_agent_cleartext 0\n")
		n.shows("ropewalk_agent_plaintext_dropped_packets_total ")
	}
	l.nodesAreUnreadable(pods)
	l.apiPathOutlivesTunnel()
	l.plaintextOfNodeIsDropped()

	// A node that no longer encrypts is reached in the clear.
	n := l.nodes[2]
	n.setLabel("clear", "yes")
	n.startMesh()
	for _, o := range l.nodes[:2] {
		o.shows("ropewalk_agent_clear_nodes 1\n")
		o.shows("ropewalk_agent_node_routes 2\n")
	}
	if st, err := l.status(n.name); err != nil || st.EncryptsNodes {
		t.Errorf("%s still publishes that it encrypts: %v", n.name, err)
	}
	hosts := l.hosts(false)
	for _, pair := range [][2]*pod{{hosts[2], hosts[0]}, {hosts[0], hosts[2]}, {pods[2], hosts[0]}, {hosts[0], pods[2]}} {
		expect.EventuallyNoError(l, "TCP in the clear", func() error { return pair[0].exchange(pair[1]) })
	}
}

// nodesAreUnreadable has nodes and pods talk to each other, in all combinations.
func (l *lab) nodesAreUnreadable(pods []*pod) {
	l.Helper()
	e := l.eavesdropOn(inspectNodes)
	for _, v6 := range []bool{false, true} {
		hosts, others := l.hosts(v6), pods
		if v6 {
			others = six(pods)
		}
		l.reach(hosts)
		for i := range hosts {
			to := (i + 1) % len(hosts)
			for _, pair := range [][2]*pod{{hosts[i], hosts[to]}, {others[i], hosts[to]}, {hosts[i], others[to]}} {
				if err := errors.Join(pair[0].ping(pair[1]), pair[0].exchange(pair[1])); err != nil {
					l.Errorf("%s to %s: %v", pair[0].addr, pair[1].addr, err)
				}
			}
		}
	}
	if err := l.hosts(false)[1].exchangeOver(l.hosts(false)[0], clearPort, []byte("hello")); err != nil {
		l.Errorf("the exempt port: %v", err)
	}
	if e.seen() < 100 {
		l.Errorf("only %d encrypted messages were seen", e.seen())
	}
	e.stop(l)
}

// apiPathOutlivesTunnel ends an engine, and takes down its interface. Nodes do not reach each other then, except for the exempt port.
func (l *lab) apiPathOutlivesTunnel() {
	l.Helper()
	n, hosts := l.nodes[1], l.hosts(false)
	e := l.eavesdropOn(inspectNodes)
	n.halt()
	for _, broken := range []string{"engine", "interface"} {
		if broken == "interface" {
			expect.NoError(l, n.host.Do(func() error {
				link, err := netlink.LinkByName(n.tunnel())
				if err != nil {
					return err
				}
				return netlink.LinkSetDown(link)
			}))
		}
		l.refused(hosts[1], hosts[0])
		for _, pair := range [][2]*pod{{hosts[1], hosts[0]}, {hosts[2], hosts[0]}} {
			if err := pair[0].exchangeOver(pair[1], clearPort, []byte("hello")); err != nil {
				l.Errorf("without the %s: %v", broken, err)
			}
		}
	}
	n.startMesh()
	l.reach(hosts)
	e.stop(l)
}

// plaintextOfNodeIsDropped has a node without agent and rules send in the clear. It leaves the node so.
func (l *lab) plaintextOfNodeIsDropped() {
	l.Helper()
	spoofer, target, hosts := l.nodes[2], l.nodes[0], l.hosts(false)
	before := target.gauge("plaintext_dropped_packets_total")
	spoofer.halt()
	spoofer.reboot()
	err := spoofer.host.Do(func() error {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(target.addr, 8080).String(), time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
	if !errors.Is(err, unix.ETIMEDOUT) && !isTimeout(err) {
		l.Errorf("a connection in the clear: %v, want a timeout", err)
	}
	if n := target.gauge("plaintext_dropped_packets_total") - before; n < 1 {
		l.Errorf("%d unencrypted packets were dropped and counted", n)
	}
	if err := hosts[2].exchangeOver(hosts[0], clearPort, []byte("hello")); err != nil {
		l.Errorf("the exempt port: %v", err)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
