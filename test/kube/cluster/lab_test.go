// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

// labPrefix begins the names of the test's network namespaces.
const labPrefix = "cluster"

// cluster is a control plane and two nodes.
type cluster struct {
	*testing.T // of the running step

	ip         ipVersions
	network    network
	net        *netlab.Lab
	repository string // its absolute path
	dir        string
	bin        string
	images     []string
	pki        *pki
	admin      string // kubeconfig
	control    *machine
	nodes      []*node
}

// startCluster starts a cluster whose nodes are ready. It skips the test, with the reason, on a machine that cannot run one.
func startCluster(t *testing.T, ip ...ipVersion) *cluster {
	t.Helper()
	return startClusterOf(t, bridge, ip...)
}

// startClusterOf is startCluster with a network plugin.
func startClusterOf(t *testing.T, plugin network, ip ...ipVersion) *cluster {
	t.Helper()
	for _, name := range []string{"containerd", "ctr", "runc", "buildah", "nft", "iptables", "nsenter", "/usr/lib/cni/bridge"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs containerd, runc, containernetworking-plugins, buildah, nftables, iptables and util-linux (make deps-cluster): %v", err)
		}
	}
	net, err := netlab.New(labPrefix)
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	expect.NoError(t, err)
	c := &cluster{T: t, ip: ip, network: plugin, net: net, dir: t.TempDir()}
	c.repository, err = filepath.Abs(root)
	expect.NoError(t, err)
	t.Cleanup(c.close)
	// Of tests that were killed: the lab has ended their processes, which stay in the cgroups for a moment.
	expect.EventuallyNoError(t, "no cgroup of an earlier test is left", removeOldCgroups)
	built, err := buildAll()
	expect.NoError(t, err)
	c.bin, c.images = built.bin, built.images
	c.pki, err = newPKI(c.mkdir("pki"), ip[0])
	expect.NoError(t, err)
	t.Log("programs and images are built")
	c.startControlPlane()
	t.Log("the API server is ready")
	for _, i := range []int{1, 2} {
		c.addNode(i)
	}
	c.layPodNetwork()
	c.awaitNodes()
	t.Log("two nodes are ready")
	return c
}

func (c *cluster) mkdir(name string) string {
	c.Helper()
	dir := filepath.Join(c.dir, name)
	expect.NoError(c, os.MkdirAll(dir, 0o755))
	return dir
}

// prepare prepares a program beside the control plane, in the repository, as an administrator.
func (c *cluster) prepare(ctx context.Context, argv ...string) *exec.Cmd {
	env := []string{"env", "--chdir=" + c.repository, "VERSION=" + firstTag, "PATH=" + c.bin + ":" + os.Getenv("PATH"), "KUBECONFIG=" + c.admin}
	return c.control.command(ctx, append(env, argv...)...)
}

// kubectl runs kubectl and returns what it wrote.
func (c *cluster) kubectl(args ...string) string {
	c.Helper()
	out, err := c.try(append([]string{"kubectl"}, args...)...)
	expect.NoError(c, err)
	return strings.TrimSpace(out)
}

// step runs a part of the test. Later parts need the earlier ones.
func (c *cluster) step(name string, f func()) {
	outer := c.T
	defer func() { c.T = outer }()
	ok := outer.Run(name, func(t *testing.T) {
		c.T = t
		f()
	})
	if c.T = outer; !ok {
		c.FailNow()
	}
}

// close ends the cluster, and removes all that it has created.
func (c *cluster) close() {
	if c.Failed() && c.control != nil {
		c.explain()
	}
	for _, m := range c.machines() {
		if err := m.powerOff(); err != nil {
			c.Error(err)
		}
	}
	if err := c.net.Close(); err != nil {
		c.Error(err)
	}
	for _, n := range c.nodes {
		n.awaitNoCgroup()
	}
}

// explain writes what an administrator would look at after a failure.
func (c *cluster) explain() {
	for _, args := range [][]string{
		{"get", "nodes,pods,services,ropewalknodes", "-A", "-o", "wide"},
		{"describe", "pods", "-n", "ropewalk-system"},
		{"logs", "-n", "ropewalk-system", "-l", "app.kubernetes.io/name in (ropewalk-mesh,ropewalk-engine)", "--prefix", "--tail=40"},
	} {
		out, err := c.try(append([]string{"kubectl"}, args...)...)
		c.Log(out, err)
	}
	for _, m := range c.machines() {
		logs, _ := filepath.Glob(filepath.Join(m.dir, "*.log"))
		for _, log := range logs {
			out, _ := exec.Command("tail", "-n", "15", log).CombinedOutput()
			c.Logf("%s:\n%s", log, out)
		}
	}
}

// machines returns all that have been started.
func (c *cluster) machines() (all []*machine) {
	if c.control != nil {
		all = append(all, c.control)
	}
	for _, n := range c.nodes {
		if n.machine != nil {
			all = append(all, n.machine)
		}
	}
	return all
}
