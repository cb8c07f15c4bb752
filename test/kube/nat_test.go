// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

const natAddr = "192.0.2.50"

// addNAT adds a router with one address on the fabric, and its address in a network behind it.
func (l *lab) addNAT(name, addr, inside string) *netlab.Host {
	l.Helper()
	router, err := l.net.Host(name)
	expect.NoError(l, err)
	c, err := l.net.Cable(l.fabric, router, netlab.CableConfig{AddrsB: []netip.Prefix{netip.MustParsePrefix(addr + "/24")}})
	expect.NoError(l, err)
	l.bridge(l.fabric, c.DeviceA)
	l.addBridge(router, netip.MustParsePrefix(inside+"/24"))
	if err := router.Masquerade(c.DeviceB, netlab.NATPorts{}); errors.Is(err, netlab.ErrNoNftables) {
		l.Skip(err)
	} else if err != nil {
		l.Fatal(err)
	}
	return router
}

// addNodeBehind adds a node with a keepalive to the network behind a NAT, and a route through that.
func (l *lab) addNodeBehind(router *netlab.Host, i int, addr, inside string) *node {
	l.Helper()
	l.addNodeOn(router, i, netip.MustParseAddr(addr))
	n := l.nodes[i-1]
	n.setLabel("pool", "nat")
	expect.NoError(l, errors.Join(n.host.Forward(), n.host.RouteVia(netip.MustParsePrefix("192.0.2.0/24"), netip.MustParseAddr(inside))))
	return n
}

// observed returns the endpoints of the peers that a node has at an address.
func (n *node) observed(addr string) (endpoints []string, err error) {
	bin, err := ropewalkBinary()
	expect.NoError(n.l, err)
	out, err := n.host.Command(n.l.Context(), bin, "show", n.tunnel(), "endpoints").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if _, endpoint, _ := strings.Cut(strings.TrimSpace(line), "\t"); strings.HasPrefix(endpoint, addr+":") {
			endpoints = append(endpoints, endpoint)
		}
	}
	return endpoints, nil
}

// forgetMappings removes the mappings of a NAT, and waits until all nodes behind it have new ones. Nodes without a keepalive send nothing.
func (l *lab) forgetMappings(router *netlab.Host) {
	l.Helper()
	expect.NoError(l, router.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
	for _, n := range l.nodes[1:] {
		expect.EventuallyNoError(l, "a mapping of "+n.name, func() error {
			var flows []*netlink.ConntrackFlow
			err := router.Do(func() (err error) {
				flows, err = netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
				return err
			})
			if err == nil && !slices.ContainsFunc(flows, func(f *netlink.ConntrackFlow) bool {
				return f.Forward.Protocol == unix.IPPROTO_UDP && f.Forward.SrcIP.String() == n.addr.String() && f.Forward.DstIP.String() == l.nodes[0].addr.String()
			}) {
				err = errors.New("there is none")
			}
			return err
		})
	}
}

func TestNodesBehindNATAreReachedAtObservedPorts(t *testing.T) {
	l := newLab(t, 1)
	l.setMesh(map[string]any{"pools": []any{map[string]any{"nodeSelector": map[string]any{"matchLabels": map[string]any{"pool": "nat"}}, "persistentKeepalive": int64(1)}}})
	router := l.addNAT("nat", natAddr, "10.1.0.254")
	for i := 2; i <= 3; i++ {
		l.addNodeBehind(router, i, fmt.Sprintf("10.1.0.%d", i), "10.1.0.254")
	}
	var pods []*pod
	for _, n := range l.nodes {
		pods = append(pods, n.addPod())
		n.startMesh()
	}
	l.awaitStatus("all are peers of all", func(st published) bool { return st.PublicKey != "" && int(st.Peers) == 2 })
	outside := l.nodes[0]
	expect.EventuallyNoError(l, "both nodes are observed at a port of their own", func() error {
		at, err := outside.observed(natAddr)
		if err == nil && (len(at) != 2 || at[0] == at[1]) {
			err = fmt.Errorf("endpoints %v", at)
		}
		return err
	})
	l.reach(pods) // the first one is outside: it begins

	// Each has the InternalIP of the other.
	if at, err := l.nodes[1].observed("10.1.0.3"); err != nil || len(at) != 1 {
		t.Errorf("node-2 reaches node-3 at %v, %v", at, err)
	}

	for range 10 {
		l.forgetMappings(router)
	}
	for _, to := range pods[1:] {
		expect.EventuallyNoError(l, "the outside node reaches "+to.n.name+" by a new mapping", func() error { return pods[0].ping(to) })
	}

	// The outside node forgets what it observed, and is told again.
	outside.halt()
	outside.startMesh()
	for _, from := range []int{1, 2, 0} {
		for to := range pods {
			if from != to {
				expect.EventuallyNoError(l, fmt.Sprintf("node-%d reaches node-%d again", from+1, to+1), func() error { return pods[from].ping(pods[to]) })
			}
		}
	}
}
