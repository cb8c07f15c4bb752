// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/ropewalk/ropewalk/test/expect"
)

// queueID is the number of the queue in which packets wait for the verdict of kube-network-policies.
const queueID = "98"

// testNetworkPolicy applies NetworkPolicies to the servers. kube-network-policies evaluates them on the server's node, by the source address that a packet has
// when it comes out of the tunnel: that of the pod on the other node.
func (c *cluster) testNetworkPolicy() {
	c.startPolicies()
	from, server := c.nodes[0], c.nodes[1].pod()
	friend, stranger := from.client("friend"), from.client("stranger")
	friend.reaches(server)
	stranger.reaches(server)
	tap := c.nodes[1].tap()

	c.kubectl("apply", "-f", "test/kube/cluster/testdata/policy.yaml")
	stranger.awaitDrops(server)
	friend.reaches(server)
	for _, addr := range server.addrs {
		connected, err := stranger.connects(addr)
		expect.NoError(c, err)
		if connected {
			c.Errorf("%s reaches %s in spite of the policy", stranger.name, addr)
		}
	}
	c.allow(stranger)
	stranger.reaches(server)
	friend.reaches(server)
	c.kubectl("delete", "networkpolicy", "--all")
	tap.end()
	c.stopPolicies()
}

// startPolicies starts kube-network-policies on all nodes, and waits until it evaluates packets.
func (c *cluster) startPolicies() {
	c.Helper()
	if n := c.nodes[0]; !n.hasQueueStatement() && !n.hasQueueTarget() {
		c.Skip("needs CONFIG_NFT_QUEUE or CONFIG_NETFILTER_XT_TARGET_NFQUEUE")
	}
	c.kubectl("apply", "-f", "test/kube/cluster/testdata/network-policies.yaml")
	c.kubectl("-n", "kube-system", "rollout", "status", "daemonset/kube-network-policies", "--timeout=3m")
	for _, n := range c.nodes {
		expect.EventuallyNoError(c, "policies are evaluated on "+n.name, func() error {
			queues, err := n.show("cat /proc/net/netfilter/nfnetlink_queue")
			if f := strings.Fields(queues); err == nil && (len(f) == 0 || f[0] != queueID) {
				err = fmt.Errorf("the queues are %q", queues)
			}
			return err
		})
		n.queueToPods("-A")
	}
}

// stopPolicies stops kube-network-policies. The rules of iptables go first: without the program they drop new connections. Its own table goes last: the
// program adds it again while it runs, and leaves it behind.
func (c *cluster) stopPolicies() {
	c.Helper()
	for _, n := range c.nodes {
		n.queueToPods("-D")
	}
	c.kubectl("delete", "--cascade=foreground", "-f", "test/kube/cluster/testdata/network-policies.yaml") // returns when its pods are gone
	for _, n := range c.nodes {
		_, err := n.show("/usr/sbin/nft add table inet kube-network-policies; delete table inet kube-network-policies")
		expect.NoError(c, err)
	}
	c.kubectl("delete", "pod", "friend", "stranger", "--now")
}

// queueToPods adds (-A) or deletes (-D) the rules that queue new connections to the node's pods. kube-network-policies adds its own with nftables' queue
// statement, if the kernel has that (CONFIG_NFT_QUEUE).
func (n *node) queueToPods(action string) {
	n.c.Helper()
	if n.hasQueueStatement() {
		return
	}
	for _, prefix := range n.pods {
		program := "/usr/sbin/iptables"
		if strings.Contains(prefix, ":") {
			program = "/usr/sbin/ip6tables"
		}
		_, err := n.show(program + " -w -t mangle " + action + " POSTROUTING -d " + prefix + " -m conntrack --ctstate NEW -j NFQUEUE --queue-num " + queueID)
		expect.NoError(n.c, err)
	}
}

// hasQueueStatement adds a rule with the statement and deletes it, in one transaction.
func (n *node) hasQueueStatement() bool {
	_, err := n.show("/usr/sbin/nft add table inet probe; add chain inet probe c; add rule inet probe c queue to 1; delete table inet probe")
	return err == nil
}

// hasQueueTarget adds a rule with the target of iptables to a chain of its own, and deletes both.
func (n *node) hasQueueTarget() bool {
	n.c.Helper()
	const mangle = "/usr/sbin/iptables -w -t mangle "
	if _, err := n.show(mangle + "-N probe"); err != nil {
		return false
	}
	_, err := n.show(mangle + "-A probe -m conntrack --ctstate NEW -j NFQUEUE --queue-num " + queueID)
	for _, action := range []string{"-F", "-X"} {
		_, err := n.show(mangle + action + " probe")
		expect.NoError(n.c, err)
	}
	return err == nil
}

// client starts a pod with a role on the node.
func (n *node) client(role string) *pod {
	n.c.Helper()
	n.c.kubectl("run", role, "--image="+podImage, "--image-pull-policy=Never", "--labels=role="+role, "--overrides", `{"spec": {"nodeName": "`+n.name+`"}}`)
	n.c.kubectl("wait", "--for=condition=Ready", "pod/"+role, "--timeout=3m")
	return &pod{c: n.c, node: n, name: role, addrs: strings.Fields(n.c.kubectl("get", "pod", role, "-o", "jsonpath={.status.podIPs[*].ip}"))}
}

// connects reports whether a server answers. It does not if packets are dropped. Other failures are errors.
func (p *pod) connects(addr string) (bool, error) {
	out, err := p.c.try("kubectl", "exec", p.name, "--", "/pod", "connect", net.JoinHostPort(addr, toolPort))
	return strings.Contains(out, "connected\n"), err
}

// awaitDrops waits until the policy drops what the pod sends to all addresses of a server. Drops are those that kube-network-policies counts on the
// server's node.
func (p *pod) awaitDrops(server *pod) {
	p.c.Helper()
	expect.EventuallyNoError(p.c, "packets of "+p.name+" to "+server.name+" are dropped", func() error {
		for _, addr := range server.addrs {
			connected, err := p.connects(addr)
			if connected {
				err = fmt.Errorf("%s answers", addr)
			}
			if err != nil {
				return err
			}
		}
		metrics, err := p.c.try("kubectl", "get", "--raw", "/api/v1/nodes/"+server.node.name+":9080/proxy/metrics")
		if err == nil && strings.Count(metrics, `protocol="TCP",verdict="drop"`) < len(server.addrs) { // one counter for each IP version, once there are drops
			err = fmt.Errorf("%s has not dropped TCP packets of each IP version", server.node.name)
		}
		return err
	})
}

// allow applies a policy that lets a pod's addresses reach the servers.
func (c *cluster) allow(p *pod) {
	c.Helper()
	var blocks []string
	for _, addr := range p.addrs {
		bits := "/32"
		if strings.Contains(addr, ":") {
			bits = "/128"
		}
		blocks = append(blocks, addr+bits)
	}
	file := filepath.Join(c.mkdir("policies"), "allow.yaml")
	expect.NoError(c, os.WriteFile(file, fmt.Appendf(nil, allowPolicy, strings.Join(blocks, "}}, {ipBlock: {cidr: ")), 0o644))
	c.kubectl("apply", "-f", file)
}

const allowPolicy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: addresses}
spec:
  podSelector: {matchLabels: {app: tool}}
  policyTypes: [Ingress]
  ingress:
    - from: [{ipBlock: {cidr: %s}}]
`
