// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/test/expect"
)

// testUninstall uninstalls as documented, while pods have traffic.
func (c *cluster) testUninstall() {
	a, b := c.nodes[0].pod(), c.nodes[1].pod()
	traffic := a.probe(b, seldom)
	c.upgrade("mesh.cleartext=Always")
	c.awaitMesh()
	c.documented("install.md", "## Uninstalling", "", "")
	a.reaches(b)
	b.reaches(a)
	c.Logf("uninstall: %v", traffic.end())
	c.isGone()
}

// awaitMesh waits until all nodes have applied the last change of the RopewalkMesh.
func (c *cluster) awaitMesh() {
	c.Helper()
	expect.EventuallyNoError(c, "all nodes have applied the RopewalkMesh", func() error {
		want, err := c.try("kubectl", "get", "ropewalkmesh", "default", "-o", "jsonpath={.metadata.generation}")
		if err != nil {
			return err
		}
		got, err := c.try("kubectl", "get", "ropewalknodes", "-o", "jsonpath={.items[*].status.meshGeneration}")
		all := strings.Fields(got)
		if err == nil && (len(all) != len(c.nodes) || slices.ContainsFunc(all, func(g string) bool { return g != strings.TrimSpace(want) })) {
			err = fmt.Errorf("generations %s, want %s", got, want)
		}
		return err
	})
}

// isGone fails the test if a node or the API has anything of the agents. Their keys stay unless cleanup.keys is set.
func (c *cluster) isGone() {
	c.Helper()
	expect.EventuallyNoError(c, "the agents' objects are gone", func() error {
		left, err := c.try("kubectl", "get", "daemonsets,pods,jobs,serviceaccounts,clusterroles,clusterrolebindings,roles,rolebindings,validatingadmissionpolicies", "-A",
			"-l", "app.kubernetes.io/name in (ropewalk-mesh,ropewalk-engine)", "-o", "name")
		if err == nil && left != "" {
			err = fmt.Errorf("the API still has %s", left)
		}
		return err
	})
	for _, n := range c.nodes {
		for _, show := range []string{"ip link show", "ip rule", "ip -6 rule", "ip route show table all", "ip -6 route show table all", "nft list tables", "tc qdisc show"} {
			out, err := n.show(show)
			expect.NoError(c, err)
			if strings.Contains(out, "ropewalk") || strings.Contains(out, "8282") {
				c.Errorf("%s, %s:\n%s", n.name, show, out)
			}
		}
		files, err := n.show("find /var/lib/ropewalk /run/wireguard /sys/fs/bpf -mindepth 1 -not -name *.debug") // the kernel has two such files in each BPF file system
		const want = "/var/lib/ropewalk/engine\n/var/lib/ropewalk/keys\n/var/lib/ropewalk/keys/private.key\n"
		if files != want {
			c.Errorf("files on %s: %v, got\n%s\nwant\n%s", n.name, err, files, want)
		}
	}
}

// show runs a command of the node and returns what it wrote.
func (n *node) show(command string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return n.run(ctx, strings.Fields(command)...)
}

// testKustomize installs and uninstalls with kustomize.
func (c *cluster) testKustomize() {
	c.kubectl("apply", "--server-side", "-k", c.overlay("mesh"))
	c.awaitRollout()
	c.testPodToPod()
	c.documented("upgrade.md", "With kustomize, where OVERLAY is [your overlay](install.md#images-charts-and-bases) of the new release:", "OVERLAY", c.overlayOf("mesh", nextTag))
	c.testPodToPod()
	cleanup := c.overlay("cleanup-mesh")
	c.kubectl("apply", "--server-side", "-k", cleanup)
	c.awaitRollout()
	c.kubectl("delete", "-k", cleanup)
	c.nodes[0].pod().reaches(c.nodes[1].pod())
	c.isGone()
}

// overlay writes the documented overlay of a base, and returns its directory.
func (c *cluster) overlay(base string) string { return c.overlayOf(base, firstTag) }

// overlayOf is overlay with a tag of the image.
func (c *cluster) overlayOf(base, tag string) string {
	c.Helper()
	dir := c.mkdir(filepath.Join("overlays", base+tag))
	at, err := filepath.Abs(filepath.Join(root, "deploy", "kustomize", base))
	expect.NoError(c, err)
	at, err = filepath.Rel(dir, at)
	expect.NoError(c, err)
	text := "resources: [" + at + "]\nimages: [{name: ropewalk-agent, newName: " + agentImage + ", newTag: " + tag + "}]\n"
	expect.NoError(c, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644))
	return dir
}
