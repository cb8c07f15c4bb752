// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/test/expect"
)

// node is a machine with containerd, a kubelet and a kube-proxy. Node i has the address 10.99.0.1i, fd00:99::1i or both.
type node struct {
	c      *cluster
	name   string
	addrs  []string // of the node, one of each IP version
	pods   []string // prefixes of its pods, as the controller manager allocates them
	dir    string
	cgroup string
	conf   string // kubeconfig of its kubelet
	proxy  string // kubeconfig of its kube-proxy
	boots  int

	*machine
	wire   string // the bridge's end of its cable
	uplink string // the node's end
}

func (c *cluster) addNode(i int) {
	c.Helper()
	n := &node{c: c, name: fmt.Sprintf("n%d", i)}
	for _, v := range c.ip {
		n.addrs = append(n.addrs, fmt.Sprintf(v.node, i))
	}
	n.dir = c.mkdir(n.name)
	n.cgroup = cgroupPrefix + c.net.Tag() + "-" + n.name
	var err error
	n.conf, err = c.pki.kubeconfig(n.name, "system:node:"+n.name, "system:nodes")
	expect.NoError(c, err)
	n.proxy, err = c.pki.kubeconfig(n.name+"-proxy", "system:kube-proxy")
	expect.NoError(c, err)
	c.nodes = append(c.nodes, n)
	expect.NoError(c, n.configure())
	n.boot()
	n.importImages()
	n.startKubelet()
}

// awaitNoCgroup removes the node's cgroup. Processes that were killed stay in it for a moment.
func (n *node) awaitNoCgroup() {
	n.c.Helper()
	expect.EventuallyNoError(n.c, "the cgroup of "+n.name+" is empty", func() error { return removeCgroups(n.cgroup) })
}

// boot starts the node in a new network namespace, with containerd. Only its directory outlives a reboot.
func (n *node) boot() {
	n.c.Helper()
	if err := makeCgroup(n.cgroup); err != nil {
		n.c.Skipf("this machine cannot run containers of a cluster: %v", err)
	}
	n.boots++
	host, err := n.c.net.Host(fmt.Sprintf("%sboot%d", n.name, n.boots))
	expect.NoError(n.c, err)
	var addrs []netip.Prefix
	for i, v := range n.c.ip {
		addrs = append(addrs, netip.PrefixFrom(netip.MustParseAddr(n.addrs[i]), v.bits))
	}
	cable, err := n.c.net.Cable(n.c.control.host, host, netlab.CableConfig{AddrsB: addrs})
	expect.NoError(n.c, err)
	n.wire, n.uplink = cable.DeviceA, cable.DeviceB
	expect.NoError(n.c, n.c.plug(n.wire))
	expect.NoError(n.c, host.Forward())
	n.machine, err = boot(host, n.name, n.dir)
	expect.NoError(n.c, err)
	for _, v := range n.c.ip {
		expect.NoError(n.c, n.route(v.anywhere, v.api))
	}
	n.layRoutes()
	expect.NoError(n.c, n.start("/usr/bin/containerd", "--config", n.path("containerd.toml")))
	expect.EventuallyNoError(n.c, "containerd answers on "+n.name, func() error {
		_, err := n.ctr("version")
		return err
	})
}

// stop is a power failure. Only the node's directory is left.
func (n *node) stop() {
	n.c.Helper()
	expect.NoError(n.c, n.powerOff())
	expect.NoError(n.c, n.host.Do(func() error {
		links, err := hostnet.Dump(netlink.LinkList)
		if err != nil {
			return err
		}
		for _, l := range links {
			_ = netlink.LinkDel(l) // lo stays
		}
		return nil
	}))
	n.awaitNoCgroup()
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

func (n *node) ctr(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return n.run(ctx, append([]string{"ctr", "-n", "k8s.io"}, args...)...)
}

// importImages does what docs/kubernetes/install.md describes for clusters without a registry.
func (n *node) importImages() {
	n.c.Helper()
	for _, image := range n.c.images {
		_, err := n.ctr("images", "import", "--all-platforms", image)
		expect.NoError(n.c, err)
	}
	for _, tag := range []string{nextTag} {
		_, err := n.ctr("images", "tag", agentImage+":"+firstTag, agentImage+":"+tag)
		expect.NoError(n.c, err)
	}
}

func (n *node) startKubelet() {
	n.c.Helper()
	expect.NoError(n.c, n.start(filepath.Join(n.c.bin, "kubelet"), "--config", n.path("kubelet.yaml"), "--kubeconfig", n.conf,
		"--hostname-override", n.name, "--node-ip", strings.Join(n.addrs, ",")))
	expect.NoError(n.c, n.start(filepath.Join(n.c.bin, "kube-proxy"), "--config", n.path("proxy.yaml")))
}

// configure writes the configuration of the node's programs.
func (n *node) configure() error {
	cni := n.path("cni")
	if err := os.MkdirAll(cni, 0o755); err != nil {
		return err
	}
	return errors.Join(
		n.write("resolv.conf", ""),
		n.write("containerd.toml", containerdConfig, podImage, cni, snapshotter(n.dir)),
		n.write("kubelet.yaml", kubeletConfig, n.cgroup, n.c.pki.path("ca.crt"), n.path("resolv.conf")),
		n.write("proxy.yaml", proxyConfig, n.proxy, n.c.ip.pods(), n.name),
	)
}

func (n *node) write(name, format string, args ...any) error {
	return os.WriteFile(n.path(name), fmt.Appendf(nil, format, args...), 0o644)
}

// layPodNetwork configures the network plugin of all nodes and starts it.
func (c *cluster) layPodNetwork() {
	c.Helper()
	for _, n := range c.nodes {
		expect.EventuallyNoError(c, n.name+" has prefixes for its pods", func() error {
			out, err := c.try("kubectl", "get", "node", n.name, "-o", "jsonpath={.spec.podCIDRs[*]}")
			if n.pods = strings.Fields(out); err == nil && len(n.pods) != len(n.addrs) {
				err = fmt.Errorf("got %q", out)
			}
			return err
		})
		if c.network.start != nil {
			c.network.start(n)
		}
		expect.NoError(c, n.write("cni/10-pods.conflist", "%s", c.network.conflist(n)))
	}
	for _, n := range c.nodes {
		n.layRoutes()
	}
}

// layRoutes adds routes to the other nodes' pods, for a network plugin that leaves that to the network.
func (n *node) layRoutes() {
	n.c.Helper()
	if n.c.network.addsRoutes {
		return
	}
	for _, o := range n.c.nodes {
		for i, prefix := range o.pods {
			if o != n {
				expect.NoError(n.c, n.route(prefix, o.addrs[i]))
			}
		}
	}
}

// snapshotter returns the snapshotter for a directory: overlayfs does not work on overlayfs.
func snapshotter(dir string) string {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) == nil && st.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return "native"
	}
	return "overlayfs"
}

const containerdConfig = `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%s"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "%s"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "%s"
`

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /%s
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %s}}
authorization: {mode: Webhook}
failSwapOn: false
oomScoreAdj: 0
evictionHard: {nodefs.available: "0%%", imagefs.available: "0%%"}
imageGCHighThresholdPercent: 100
resolvConf: %s
volumePluginDir: /var/lib/kubelet/plugins-exec
`

const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: %s}
clusterCIDR: %s
hostnameOverride: %s
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`
