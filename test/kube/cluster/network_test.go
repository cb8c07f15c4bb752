// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/ropewalk/ropewalk/test/expect"
)

// network is a network plugin.
type network struct {
	name     string
	conflist func(*node) string // the configuration of the CNI plugins
	start    func(*node)        // starts the plugin's program on a node; nil: there is none
	// addsRoutes: the plugin adds the routes to other nodes' pods, or needs none.
	addsRoutes bool
}

// bridge is the reference plugin of CNI on each node, with routes that the network's administrator adds.
var bridge = network{name: "bridge", conflist: func(n *node) string { return n.plugin(bridgeConfig) }}

// ptp gives each pod a veth of its own without a bridge, as kindnet and GKE do.
var ptp = network{name: "ptp", conflist: func(n *node) string { return n.plugin(`{"type": "ptp", "mtu": 1440`) }}

const bridgeConfig = `{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "mtu": 1440`

// plugin returns the configuration of a plugin that asks host-local for addresses.
func (n *node) plugin(config string) string {
	var ranges, routes []string
	for i, v := range n.c.ip {
		ranges = append(ranges, `[{"subnet": "`+n.pods[i]+`"}]`)
		routes = append(routes, `{"dst": "`+v.anywhere+`"}`)
	}
	return `{"cniVersion": "1.0.0", "name": "pods", "plugins": [` + config + `, "ipam": {"type": "host-local", "ranges": [` + strings.Join(ranges, ", ") +
		`], "routes": [` + strings.Join(routes, ", ") + `], "dataDir": "/var/lib/cni/networks"}}]}` + "\n"
}

// flannel is a backend of flannel, in a program of its own. Its CNI plugin, which is no Go module that can be had, configures the bridge plugin; so does the test.
func flannel(backend string) network {
	return network{name: "flannel " + backend, conflist: bridge.conflist, addsRoutes: true, start: func(n *node) {
		c := n.c
		c.Helper()
		config, err := json.Marshal(map[string]any{
			"Name": n.name, "Device": n.uplink, "Addr": n.addrs[0], "Pods": n.pods[0], "Backend": backend, "Leases": c.mkdir("leases"), "Key": n.path("flannel.key"),
		})
		expect.NoError(c, err)
		expect.NoError(c, n.machine.start(c.build("test/flannel", "flanneld", "./flanneld"), string(config)))
	}}
}

// kubeRouter adds routes that nodes learn from each other by BGP. Its firewall and its proxy, which needs IPVS, are off.
var kubeRouter = network{name: "kube-router", conflist: bridge.conflist, addsRoutes: true, start: func(n *node) {
	c := n.c
	c.Helper()
	program := c.build("test/kube/router", "kube-router", "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router")
	expect.NoError(c, n.machine.start(program, "--kubeconfig="+c.admin, "--hostname-override="+n.name, "--run-router", "--run-firewall=false", "--run-service-proxy=false",
		"--run-loadbalancer=false", "--enable-cni=false", "--enable-overlay=false", "--enable-pod-egress=false", "--metrics-port=0", "--health-port=0"))
}}

// macvlan puts pods on the nodes' network: their packets pass no routing of the node.
var macvlan = network{name: "macvlan", addsRoutes: true, conflist: func(n *node) string {
	all := netip.MustParsePrefix(n.c.ip[0].pods)
	begin := strings.TrimSuffix(n.pods[0], "0/24")
	return `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "macvlan", "master": "` + n.uplink + `", "mode": "bridge", "mtu": 1440, "ipam": {
		"type": "host-local", "ranges": [[{"subnet": "` + all.String() + `", "rangeStart": "` + begin + `2", "rangeEnd": "` + begin + `200"}]], "dataDir": "/var/lib/cni/networks"}}]}` + "\n"
}}

// build builds a program that only some tests need.
func (c *cluster) build(dir, name, pkg string) string {
	c.Helper()
	program := filepath.Join(c.bin, name)
	_, err := c.try("go", "build", "-C", filepath.Join(c.repository, dir), "-o", program, pkg)
	expect.NoError(c, err)
	return program
}
