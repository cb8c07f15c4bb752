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
	out, err := c.try("bash", "-exc", "helm upgrade ropewalk-agent build/charts/ropewalk-agent -n ropewalk-system --reuse-values --set "+values)
	if err != nil {
		c.Fatalf("%v\n%s", err, out)
	}
}

func (c *cluster) awaitRollout() {
	c.Helper()
	c.kubectl("-n", "ropewalk-system", "rollout", "status", "daemonset/ropewalk-agent", "--timeout=4m")
}

// testRollout replaces the agents while pods have traffic.
func (c *cluster) testRollout() {
	a, b := c.nodes[0].pod(), c.nodes[1].pod()
	traffic := a.probe(b, often)
	c.upgrade("image.tag=" + nextTag)
	c.awaitRollout()
	a.reaches(b)
	c.Logf("rollout: %v", traffic.end())
}

// testFailedPull upgrades to an image that no node can get. The running agents go on.
func (c *cluster) testFailedPull() {
	a, b := c.nodes[0].pod(), c.nodes[1].pod()
	traffic := a.probe(b, seldom)
	c.upgrade("image.tag=missing")
	expect.EventuallyNoError(c, "an agent's image cannot be pulled", func() error {
		reasons, err := c.try("kubectl", "-n", "ropewalk-system", "get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses[*].state.waiting.reason}")
		if err == nil && !strings.Contains(reasons, "ImagePull") {
			err = fmt.Errorf("containers wait for %q", reasons)
		}
		return err
	})
	a.reaches(b)
	b.reaches(a)
	c.upgrade("image.tag=" + nextTag)
	c.awaitRollout()
	a.reaches(b)
	c.Logf("failed pull, and back: %v", traffic.end())
}

// testBrokenUpgrade upgrades to agents that run but cannot reconcile. They do not become ready, although the running agents answer at the
// address of their probes. The running agents go on.
func (c *cluster) testBrokenUpgrade() {
	a, b := c.nodes[0].pod(), c.nodes[1].pod()
	traffic := a.probe(b, seldom)
	c.upgrade("'extraArgs={--key-dir=/missing}'")
	expect.EventuallyNoError(c, "the startup probe of a new agent fails", func() error {
		name, err := c.try("kubectl", "-n", "ropewalk-system", "get", "pods", "-o",
			`jsonpath={range .items[*]}{.metadata.name}{"\t"}{.spec.containers[0].args}{"\n"}{end}`)
		if err != nil {
			return err
		}
		for line := range strings.Lines(name) {
			if name, args, _ := strings.Cut(line, "\t"); strings.Contains(args, "/missing") {
				return c.startupProbeFailed(name)
			}
		}
		return fmt.Errorf("no new agent among %q", name)
	})
	a.reaches(b)
	b.reaches(a)
	out, err := c.try("helm", "rollback", "ropewalk-agent", "-n", "ropewalk-system")
	c.Log(out)
	expect.NoError(c, err)
	c.awaitRollout()
	a.reaches(b)
	c.Logf("broken upgrade, and back: %v", traffic.end())
}

// startupProbeFailed returns an error while no startup probe of a pod has failed.
func (c *cluster) startupProbeFailed(pod string) error {
	events, err := c.try("kubectl", "-n", "ropewalk-system", "get", "events", "--field-selector=reason=Unhealthy,involvedObject.name="+pod,
		"-o", "jsonpath={.items[*].message}")
	if err == nil && !strings.Contains(events, "has not been taken over") {
		err = fmt.Errorf("the events are %q", events)
	}
	return err
}
