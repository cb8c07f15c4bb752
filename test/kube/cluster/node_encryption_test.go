// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/netio/kernel"
	"github.com/ropewalk/ropewalk/test/expect"
)

// encryptsNodes reports whether the machine's kernel can encrypt traffic between nodes.
func encryptsNodes() bool {
	release, _ := kernel.Uname()
	r, known := kernel.Parse(release)
	return !known || !r.Before(6, 1)
}

// nodeEncryption returns the arguments of Helm that encrypt traffic between nodes, or none.
func (c *cluster) nodeEncryption() string {
	if !encryptsNodes() {
		return ""
	}
	prefixes := c.ip.join(func(v ipVersion) string {
		return netip.PrefixFrom(netip.MustParseAddr(v.api), v.bits).Masked().String()
	})
	return " --set mesh.nodeEncryption.enabled=true --set 'mesh.nodeEncryption.nodeCIDRs={" + prefixes + "}'"
}

// testNodeEncryption sends traffic between nodes, and from pods to nodes, which must be encrypted on both cables. The kubelets and the API server,
// which is no node, reach each other meanwhile: each pod's command comes that way.
func (c *cluster) testNodeEncryption() {
	if !encryptsNodes() {
		c.Skip("needs Linux 6.1")
	}
	for i, from := range c.nodes {
		to := c.nodes[(i+1)%len(c.nodes)]
		expect.EventuallyNoError(c, from.name+" routes "+to.name+" into the tunnel", func() error {
			out, err := from.show("/usr/sbin/ip route get " + to.addrs[0])
			if err == nil && !strings.Contains(out, "dev ropewalk0") {
				err = fmt.Errorf("the route is %s", out)
			}
			return err
		})
	}
	var taps []*tap
	for _, n := range c.nodes {
		taps = append(taps, n.tap())
	}
	for i, from := range c.nodes {
		to := c.nodes[(i+1)%len(c.nodes)]
		c.answers(from.name+" reaches "+to.name, to.name, func() (string, error) { return c.dial(from.machine, to.addrs[0], toolPort) })
		c.answers("a pod reaches "+to.name, to.name, func() (string, error) {
			server, _, err := from.pod().dial(to.addrs[0])
			return server, err
		})
	}
	for _, t := range taps {
		t.end()
	}
	if out, _ := c.nodes[0].engine("ropewalk", "doctor"); !strings.Contains(out, "✓ node-encryption ropewalk0: traffic to all 1 peer nodes") {
		c.Errorf("doctor does not see the encryption:\n%s", out)
	}
	if got := c.kubectl("get", "ropewalkannouncements", "-o", "jsonpath={.items[*].spec.encryptsNodes}"); got != "true true" {
		c.Errorf("nodes encrypt: %q", got)
	}
}
