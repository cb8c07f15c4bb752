// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/test/expect"
)

// testJoin adds a third node to a mesh of two.
func (c *cluster) testJoin() {
	c.addNode(3)
	c.layPodNetwork()
	c.awaitNodes()
	c.allReachEachOther()
}

// testReplacement gives the third node's name to a new machine with an empty disk, hence with another key. The others forget the old key.
func (c *cluster) testReplacement() {
	n := c.nodes[2]
	old := n.key()
	n.stop()
	c.kubectl("delete", "node", n.name)
	expect.NoError(c, os.RemoveAll(n.dir))
	n.pods = nil
	expect.NoError(c, n.configure())
	n.boot()
	n.importImages()
	n.startKubelet()
	c.layPodNetwork()
	c.awaitNodes()
	c.allReachEachOther()
	c.forgets(old)
	if n.key() == old {
		c.Errorf("%s has the key of the machine before it", n.name)
	}
}

// testLeave takes the third node out of the cluster.
func (c *cluster) testLeave() {
	n := c.nodes[2]
	old := n.key()
	n.stop()
	c.kubectl("delete", "node", n.name)
	c.nodes = c.nodes[:2]
	c.forgets(old)
	c.allReachEachOther()
	c.awaitPodsGone(n.name)
}

// awaitPodsGone waits until the pods of a node that was deleted are deleted as well. A rolling update before that may stop (docs/kubernetes/operate.md).
func (c *cluster) awaitPodsGone(node string) {
	c.Helper()
	expect.EventuallyNoError(c, "the pods of "+node+" are deleted", func() error {
		left, err := c.try("kubectl", "get", "pods", "-A", "--field-selector=spec.nodeName="+node, "-o", "name")
		if err == nil && left != "" {
			err = fmt.Errorf("the API still has %s", left)
		}
		return err
	})
}

// testBlackout cuts the power of all nodes. They boot in the other order than the first time, each when the agent of the one before runs.
func (c *cluster) testBlackout() {
	for _, n := range c.nodes {
		n.stop()
	}
	for _, n := range slices.Backward(c.nodes) {
		n.boot()
		n.dropUntilAgent()
		n.startKubelet()
		expect.EventuallyNoError(c, "the agent of "+n.name+" opens the tunnel", func() error {
			_, err := n.show("/usr/sbin/ip link show ropewalk0")
			return err
		})
	}
	c.allReachEachOther()
}

// awaitNodes waits until all nodes are ready.
func (c *cluster) awaitNodes() {
	c.Helper()
	for _, n := range c.nodes {
		c.kubectl("wait", "--for=condition=Ready", "node/"+n.name, "--timeout=3m")
	}
}

// allReachEachOther waits until the server on each node reaches those of all others. They may have just been started.
func (c *cluster) allReachEachOther() {
	c.Helper()
	for _, from := range c.nodes {
		for _, to := range c.nodes {
			if from == to {
				continue
			}
			expect.EventuallyNoError(c, "pods on "+from.name+" reach those on "+to.name, func() error {
				a, err := from.findPod()
				if err != nil {
					return err
				}
				b, err := to.findPod()
				if err != nil {
					return err
				}
				return a.tryToReach(b)
			})
		}
	}
}

// key returns the public key that the node's agent has published, or "".
func (n *node) key() string {
	n.c.Helper()
	return n.c.kubectl("get", "ropewalkannouncement", n.name, "-o", "jsonpath={.spec.publicKey}")
}

// forgets waits until no node has a peer with a key.
func (c *cluster) forgets(key string) {
	c.Helper()
	for _, n := range c.nodes {
		expect.EventuallyNoError(c, n.name+" drops a peer that has left", func() error {
			peers, err := n.engine("ropewalk", "show", "ropewalk0", "peers")
			if err == nil && strings.Contains(peers, key) {
				err = fmt.Errorf("it still has %s", key)
			}
			return err
		})
	}
}

// engine runs a program in the container of the node's engine.
func (n *node) engine(argv ...string) (string, error) {
	name, err := n.c.try("kubectl", "-n", "ropewalk-system", "get", "pods", "-l", "app.kubernetes.io/name=ropewalk-engine",
		"--field-selector=spec.nodeName="+n.name+",status.phase=Running", "-o", "jsonpath={.items[0].metadata.name}")
	if err != nil {
		return "", err
	}
	return n.c.try(append([]string{"kubectl", "-n", "ropewalk-system", "exec", name, "--"}, argv...)...)
}

// hasOwnAddresses reports whether the pod's addresses are the node's. Those of a pod that the new machine has not started yet are not.
func (n *node) hasOwnAddresses(p *pod) bool {
	for i, text := range n.pods {
		prefix, err := netip.ParsePrefix(text)
		addr, aerr := netip.ParseAddr(p.addrs[i])
		if err != nil || aerr != nil || !prefix.Contains(addr) {
			return false
		}
	}
	return true
}
