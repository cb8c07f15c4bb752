// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/test/expect"
)

// testPodsAndNodes sends traffic between each pod and each node, in both directions.
func (c *cluster) testPodsAndNodes() {
	for _, n := range c.nodes {
		expect.NoError(c, n.start(filepath.Join(c.bin, "pod"), "serve", ":"+toolPort))
	}
	for _, from := range c.nodes {
		p := from.pod()
		for _, to := range c.nodes {
			q := to.pod()
			for i := range to.addrs {
				c.answers("a pod reaches "+to.addrs[i], to.name, func() (string, error) {
					server, _, err := p.dial(to.addrs[i])
					return server, err
				})
				c.answers(from.name+" reaches "+q.addrs[i], q.name, func() (string, error) { return c.dial(from.machine, q.addrs[i], toolPort) })
			}
		}
	}
}

// answers connects until the right server answers.
func (c *cluster) answers(what, want string, dial func() (server string, err error)) {
	c.Helper()
	expect.EventuallyNoError(c, what, func() error {
		server, err := dial()
		if err == nil && server != want {
			err = fmt.Errorf("got server %s, want %s", server, want)
		}
		return err
	})
}

// dial exchanges a megabyte with a server and returns its host's name.
func (c *cluster) dial(m *machine, addr, port string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := m.run(ctx, filepath.Join(c.bin, "pod"), "dial", net.JoinHostPort(addr, port))
	name, _, _ := strings.Cut(out, " ")
	return name, err
}

// testServices reaches both servers through their Service: from a pod and a node by its addresses, and from outside by each
// node's port.
func (c *cluster) testServices() {
	f := strings.Fields(c.kubectl("get", "service", "tool", "-o", "jsonpath={.spec.ports[0].nodePort} {.spec.clusterIPs[*]}"))
	if len(f) != 1+len(c.ip) {
		c.Fatalf("the Service has no port, or not an address of each IP version: %q", f)
	}
	for i, addr := range f[1:] {
		c.reachesAll("a pod, through "+addr, func() (string, error) {
			server, _, err := c.nodes[0].pod().dial(addr)
			return server, err
		})
		for _, n := range c.nodes {
			c.reachesAll(n.name+", through "+addr, func() (string, error) { return c.dial(n.machine, addr, toolPort) })
			c.reachesAll("a client, through "+n.addrs[i], func() (string, error) { return c.dial(c.control, n.addrs[i], f[0]) })
		}
	}
}

// reachesAll connects until both servers have answered.
func (c *cluster) reachesAll(who string, dial func() (server string, err error)) {
	c.Helper()
	seen := map[string]bool{}
	expect.EventuallyNoError(c, who+" reaches both servers of the Service", func() error {
		server, err := dial()
		if err != nil {
			return err
		}
		if seen[server] = true; len(seen) < len(c.nodes) {
			return fmt.Errorf("reached only %v", seen)
		}
		return nil
	})
}
