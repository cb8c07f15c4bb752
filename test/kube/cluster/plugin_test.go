// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/ropewalk/ropewalk/test/expect"
)

// testKubectlPlugin runs the plugin as kubectl finds it. A bundle of a cluster that works is complete and has no secret of it. When a node has lost power, it has
// the files of the other.
func (c *cluster) testKubectlPlugin() {
	c.build(".", "kubectl-ropewalk", "./cmd/ropewalk-agent")
	if out := c.kubectl("ropewalk", "status"); !strings.Contains(out, "1/1") {
		c.Errorf("status prints\n%s", out)
	}
	if out := c.kubectl("ropewalk", "flows", c.nodes[0].name); !strings.Contains(out, "flows") {
		c.Errorf("flows prints\n%s", out)
	}
	secrets := c.secrets()
	dir := c.bundle("whole", true)
	for _, n := range c.nodes {
		for _, name := range []string{"show.json", "doctor.json", "*-agent-*/agent.log", "*-agent-*/metrics.txt", "*-engine-*/engine.log", "*-engine-*/metrics.txt"} {
			if found, err := filepath.Glob(filepath.Join(dir, "nodes", n.name, name)); err != nil || len(found) != 1 {
				c.Errorf("the bundle has %q for %s of %s, %v", found, name, n.name, err)
			}
		}
	}
	for _, secret := range secrets {
		if out, err := exec.Command("grep", "-rlF", "-e", secret, dir).CombinedOutput(); err == nil {
			c.Errorf("a secret is in %s", out)
		}
	}
	c.nodes[1].stop()
	dir = c.bundle("partial", false)
	index, err := os.ReadFile(filepath.Join(dir, "index.txt"))
	expect.NoError(c, err)
	_, err = os.Stat(filepath.Join(dir, "nodes", c.nodes[0].name, "show.json"))
	if !strings.Contains(string(index), "MISSING  nodes/"+c.nodes[1].name+"/show.json") || err != nil {
		c.Errorf("got %v, and the index\n%s", err, index)
	}
}

// bundle writes a bundle, which must be complete or not, and unpacks it.
func (c *cluster) bundle(name string, complete bool) string {
	c.Helper()
	dir := c.mkdir("bundles")
	out, err := c.try("kubectl", "ropewalk", "bundle", "--timeout=20s", "--output="+filepath.Join(dir, name+".tar.gz"))
	if (err == nil) != complete || err != nil && !strings.Contains(out, "incomplete") {
		c.Errorf("bundle: %v\n%s", err, out)
	}
	_, err = c.try("tar", "-xzf", filepath.Join(dir, name+".tar.gz"), "-C", dir)
	expect.NoError(c, err)
	return filepath.Join(dir, name)
}

// secrets returns the private keys of all nodes, and the tokens of all pods.
func (c *cluster) secrets() (all []string) {
	c.Helper()
	for _, n := range c.nodes {
		key, err := os.ReadFile(n.path("lib/ropewalk/keys/private.key"))
		expect.NoError(c, err)
		tokens, err := n.run(c.Context(), "sh", "-c", "awk 1 /var/lib/kubelet/pods/*/volumes/kubernetes.io~projected/*/token") // a line each
		expect.NoError(c, err)
		all = append(all, append(strings.Fields(tokens), strings.TrimSpace(string(key)))...)
	}
	return all
}
