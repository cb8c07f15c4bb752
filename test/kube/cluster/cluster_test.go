// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/test/expect"
)

func TestCluster(t *testing.T) {
	c := startCluster(t, ipv4, ipv6)
	c.applyPods()
	c.step("install", c.testInstall)
	c.step("doctor", c.testDoctor)
	c.step("pod to pod", c.testPodToPod)
	c.step("pods and nodes", c.testPodsAndNodes)
	c.step("services", c.testServices)
	c.step("network policy", c.testNetworkPolicy)
	c.step("kill", c.testKill)
	c.step("rollout", c.testRollout)
	c.step("failed pull", c.testFailedPull)
	c.step("broken upgrade", c.testBrokenUpgrade)
	c.step("reboot", c.testReboot)
	c.step("blackout", c.testBlackout)
	c.step("join", c.testJoin)
	c.step("replacement", c.testReplacement)
	c.step("leave", c.testLeave)
	c.step("uninstall", c.testUninstall)
	c.step("kustomize", c.testKustomize)
}

// TestClusterWithOneIPVersion has clusters whose nodes, pods and Services have no other. They encrypt traffic between nodes, too.
func TestClusterWithOneIPVersion(t *testing.T) {
	for i, name := range []string{"IPv4", "IPv6"} {
		t.Run(name, func(t *testing.T) {
			c := startCluster(t, ipVersions{ipv4, ipv6}[i])
			c.applyPods()
			c.step("install", func() { c.install(c.nodeEncryption()) })
			c.step("pod to pod", c.testPodToPod)
			c.step("pods and nodes", c.testPodsAndNodes)
			c.step("node encryption", c.testNodeEncryption)
			c.step("services", c.testServices)
			c.step("blackout", c.testBlackout)
		})
	}
}

// testInstall installs the agents in mode mesh with the commands of the documentation.
func (c *cluster) testInstall() { c.install("") }

// install is testInstall with more arguments of Helm.
func (c *cluster) install(more string) {
	c.Helper()
	c.documented("install.md", "# Installing the agent", "REGISTRY/ropewalk-agent", "localhost/ropewalk-agent --set 'mesh.podCIDRs={"+c.ip.pods()+"}'"+more)
}

// testDoctor examines a node from the engine's pod, which has all that it needs.
func (c *cluster) testDoctor() {
	out, _ := c.nodes[0].engine("ropewalk", "doctor") // fails with warnings about the test's machine
	for _, check := range []string{"tun-device", "capabilities", "memlock", "bpffs", "tunnel ropewalk0", "fast-steer ropewalk0"} {
		if !strings.Contains(out, "✓ "+check+":") {
			c.Errorf("%s is not in order:\n%s", check, out)
		}
	}
}

// testPodToPod sends traffic in both directions, which must be encrypted on both cables.
func (c *cluster) testPodToPod() {
	a, b := c.nodes[0].pod(), c.nodes[1].pod()
	a.reaches(b) // agents have met
	b.reaches(a)
	var taps []*tap
	for _, n := range c.nodes {
		taps = append(taps, n.tap())
	}
	a.reaches(b)
	b.reaches(a)
	for _, t := range taps {
		t.end()
	}
}

// documented runs the commands below a line of a page in docs/kubernetes, with a placeholder replaced.
func (c *cluster) documented(page, line, placeholder, value string) {
	c.Helper()
	text, err := os.ReadFile(root + "/docs/kubernetes/" + page)
	expect.NoError(c, err)
	_, section, found := strings.Cut(string(text), line+"\n")
	_, block, fenced := strings.Cut(section, "\n```sh\n")
	commands, _, ended := strings.Cut(block, "\n```\n")
	if !found || !fenced || !ended {
		c.Fatalf("docs/kubernetes/%s has no commands below %q", page, line)
	}
	// The image is built already: its recipe asks the module proxy, which the lab does not reach.
	commands = strings.NewReplacer(placeholder, value, "make image-agent ", "make ").Replace(commands)
	out, err := c.try("bash", "-exc", commands)
	c.Log(out)
	expect.NoError(c, err)
}
