// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/test/expect"
)

// testUninstall uninstalls as documented, while pods have traffic.
func (c *cluster) testUninstall() {
	a, b := c.nodes[0].pod(), c.nodes[1].pod()
	traffic := a.probe(b)
	c.upgrade("mesh.cleartext=always")
	c.awaitRollout()
	c.documented("### Uninstalling", "", "")
	a.reaches(b)
	b.reaches(a)
	c.Logf("uninstall: %v", traffic.end())
	c.isGone()
}

// isGone fails the test if a node or the API has anything of the agents. Their keys stay unless cleanup.keys is set.
func (c *cluster) isGone() {
	c.Helper()
	expect.EventuallyNoError(c, "the agents' objects are gone", func() error {
		left, err := c.try("kubectl", "get", "daemonsets,pods,serviceaccounts,clusterroles,clusterrolebindings,roles,rolebindings,validatingadmissionpolicies", "-A",
			"-l", "app.kubernetes.io/name=ropewalk-agent", "-o", "name")
		if err == nil && left != "" {
			err = fmt.Errorf("the API still has %s", left)
		}
		return err
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, n := range c.nodes {
		for _, show := range []string{"ip link show", "ip rule", "ip -6 rule", "ip route show table all", "ip -6 route show table all", "nft list tables"} {
			out, err := n.run(ctx, strings.Fields(show)...)
			expect.NoError(c, err)
			if strings.Contains(out, "ropewalk") || strings.Contains(out, "8282") {
				c.Errorf("%s, %s:\n%s", n.name, show, out)
			}
		}
	}
}

// testKustomize installs and uninstalls with kustomize.
func (c *cluster) testKustomize() {
	c.kubectl("apply", "--server-side", "-k", c.overlay("mesh"))
	c.awaitRollout()
	c.testPodToPod()
	cleanup := c.overlay("cleanup")
	c.kubectl("apply", "--server-side", "-k", cleanup)
	c.awaitRollout()
	c.kubectl("delete", "-k", cleanup)
	c.nodes[0].pod().reaches(c.nodes[1].pod())
	c.isGone()
}

// overlay writes the documented overlay of a base, and returns its directory.
func (c *cluster) overlay(base string) string {
	c.Helper()
	dir := c.mkdir(filepath.Join("overlays", base))
	at, err := filepath.Abs(filepath.Join(root, "deploy", "kustomize", base))
	expect.NoError(c, err)
	at, err = filepath.Rel(dir, at)
	expect.NoError(c, err)
	text := "resources: [" + at + "]\nimages: [{name: ropewalk-agent, newName: " + agentImage + "}]\n"
	expect.NoError(c, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644))
	return dir
}
