// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strings"

	"github.com/ropewalk/ropewalk/test/expect"
)

// upgrade is the documented way to change values.
func (c *cluster) upgrade(values string) {
	c.Helper()
	out, err := c.try("bash", "-exc", "helm upgrade ropewalk-mesh build/charts/ropewalk-mesh -n ropewalk-system --reuse-values --set "+values)
	if err != nil {
		c.Fatalf("%v\n%s", err, out)
	}
}

// awaitRollout waits until all engines and agents are those of the last change, and available.
func (c *cluster) awaitRollout() {
	c.Helper()
	for _, name := range []string{"ropewalk-engine", "ropewalk-mesh"} {
		c.kubectl("-n", "ropewalk-system", "rollout", "status", "daemonset/"+name, "--timeout=4m")
	}
}

// engines returns what differs once a pod of an engine is another, or was restarted.
func (c *cluster) engines() string {
	c.Helper()
	return c.kubectl("-n", "ropewalk-system", "get", "pods", "-l", "app.kubernetes.io/name=ropewalk-engine", "--field-selector=status.phase=Running",
		"-o", "jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].containerID} {end}")
}

// testRollout replaces the agents and then the engines while pods have traffic.
func (c *cluster) testRollout() {
	a, b := c.nodes[0].pod(), c.nodes[1].pod()
	before, traffic := c.engines(), a.probe(b, often)
	c.upgrade("image.tag=" + nextTag + ",engine.image.tag=" + firstTag)
	c.awaitRollout()
	a.reaches(b)
	c.Logf("rollout of agents: %v", traffic.endWithoutLoss())
	if after := c.engines(); after != before {
		c.Errorf("the engines are %s after %s", after, before)
	}
	traffic = a.probe(b, often)
	c.documented("upgrade.md", "# Upgrading and going back", "--reset-then-reuse-values", "--reset-then-reuse-values --set engine.image.tag=") // that of the agents
	a.reaches(b)
	c.Logf("rollout of engines: %v", traffic.end())
}

// testFailedPull upgrades to an image that no node can get. The running engines go on.
func (c *cluster) testFailedPull() {
	a, b := c.nodes[0].pod(), c.nodes[1].pod()
	before, traffic := c.engines(), a.probe(b, seldom)
	c.upgrade("image.tag=missing")
	for _, name := range []string{"agent", "engine"} {
		expect.EventuallyNoError(c, "the image of an "+name+" cannot be pulled", func() error { return c.waitsBecauseOf(name, "ImagePull") })
	}
	a.reaches(b)
	b.reaches(a)
	c.upgrade("image.tag=" + nextTag)
	c.awaitRollout()
	a.reaches(b)
	c.Logf("failed pull, and back: %v", traffic.endWithoutLoss())
	if after := c.engines(); after != before {
		c.Errorf("the engines are %s after %s", after, before)
	}
}

// waitsBecauseOf returns an error unless a container of this name waits, with a reason that contains a text.
func (c *cluster) waitsBecauseOf(container, text string) error {
	reasons, err := c.try("kubectl", "-n", "ropewalk-system", "get", "pods", "-o",
		"jsonpath={.items[*].status.containerStatuses[?(@.name=='"+container+"')].state.waiting.reason}")
	if err == nil && !strings.Contains(reasons, text) {
		err = fmt.Errorf("containers wait for %q", reasons)
	}
	return err
}

// testBrokenUpgrade upgrades to agents that run but cannot reconcile, and to engines that do not start. They do not become ready, and the running
// engines go on.
func (c *cluster) testBrokenUpgrade() {
	a, b := c.nodes[0].pod(), c.nodes[1].pod()
	before, traffic := c.engines(), a.probe(b, seldom)
	c.upgrade("'extraArgs={--key-dir=/missing},engine.extraArgs={--missing}'")
	expect.EventuallyNoError(c, "a new engine ends", func() error { return c.waitsBecauseOf("engine", "CrashLoopBackOff") })
	expect.EventuallyNoError(c, "a new agent is not ready", func() error {
		name, err := c.try("kubectl", "-n", "ropewalk-system", "get", "pods", "-o",
			`jsonpath={range .items[*]}{.metadata.name}{"\t"}{.spec.containers[0].args}{"\n"}{end}`)
		if err != nil {
			return err
		}
		for line := range strings.Lines(name) {
			if name, args, _ := strings.Cut(line, "\t"); strings.Contains(args, "/missing") {
				return c.readinessProbeFailed(name)
			}
		}
		return fmt.Errorf("no new agent among %q", name)
	})
	a.reaches(b)
	b.reaches(a)
	c.documented("upgrade.md", "## Going back", "", "")
	a.reaches(b)
	c.Logf("broken upgrade, and back: %v", traffic.endWithoutLoss())
	if after := c.engines(); after != before {
		c.Errorf("the engines are %s after %s", after, before)
	}
}

// readinessProbeFailed returns an error while no readiness probe of a pod has failed.
func (c *cluster) readinessProbeFailed(pod string) error {
	events, err := c.try("kubectl", "-n", "ropewalk-system", "get", "events", "--field-selector=reason=Unhealthy,involvedObject.name="+pod,
		"-o", "jsonpath={.items[*].message}")
	if err == nil && !strings.Contains(events, "Readiness probe failed: HTTP") {
		err = fmt.Errorf("the events are %q", events)
	}
	return err
}
