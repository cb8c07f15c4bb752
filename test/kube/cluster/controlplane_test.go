// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/test/expect"
)

// ipVersion has a cluster's addresses of one IP version.
type ipVersion struct {
	api        string // address of the API server, and of the network's router
	bits       int    // of the nodes' network
	node       string // format of a node's address
	pods       string // prefix
	services   string // prefix
	kubernetes string // address of the API server's Service
	anywhere   string
}

var (
	ipv4 = ipVersion{"10.99.0.1", 24, "10.99.0.1%d", "10.244.0.0/16", "10.96.0.0/16", "10.96.0.1", "0.0.0.0/0"}
	ipv6 = ipVersion{"fd00:99::1", 64, "fd00:99::1%d", "fd00:244::/48", "fd00:96::/112", "fd00:96::1", "::/0"}
)

// ipVersions are those of a cluster. The control plane uses the first.
type ipVersions []ipVersion

func (all ipVersions) join(field func(ipVersion) string) string {
	var texts []string
	for _, v := range all {
		texts = append(texts, field(v))
	}
	return strings.Join(texts, ",")
}

func (all ipVersions) pods() string { return all.join(func(v ipVersion) string { return v.pods }) }
func (all ipVersions) services() string {
	return all.join(func(v ipVersion) string { return v.services })
}

// startControlPlane starts the machine that has the API server and the network to which nodes are connected.
func (c *cluster) startControlPlane() {
	c.Helper()
	host, err := c.net.Host("control")
	expect.NoError(c, err)
	expect.NoError(c, host.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "bridge0"
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	}))
	var addrs []netip.Prefix
	for _, v := range c.ip {
		addrs = append(addrs, netip.PrefixFrom(netip.MustParseAddr(v.api), v.bits))
	}
	expect.NoError(c, host.SetUp("bridge0", 1500, addrs...))
	c.control, err = boot(host, "control", c.mkdir("control"))
	expect.NoError(c, err)
	c.startAPI()
	c.startControllers()
}

func (c *cluster) startAPI() {
	c.Helper()
	expect.NoError(c, c.pki.serving(c.ip[0]))
	_, err := c.pki.issue("apiserver-kubelet", certificate("apiserver-kubelet", "system:masters"))
	expect.NoError(c, err)
	c.admin, err = c.pki.kubeconfig("admin", "admin", "system:masters")
	expect.NoError(c, err)
	expect.NoError(c, c.control.start(filepath.Join(c.bin, "etcd"), "--data-dir", c.mkdir("etcd")))
	expect.NoError(c, c.control.start(filepath.Join(c.bin, "kube-apiserver"),
		"--etcd-servers=http://127.0.0.1:2379", "--bind-address="+c.ip[0].api, "--advertise-address="+c.ip[0].api, "--secure-port=6443",
		"--tls-cert-file="+c.pki.path("apiserver.crt"), "--tls-private-key-file="+c.pki.path("apiserver.key"), "--client-ca-file="+c.pki.path("ca.crt"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged",
		"--service-cluster-ip-range="+c.ip.services(), "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.pki.path("sa.key"), "--service-account-signing-key-file="+c.pki.path("sa.key"),
		"--kubelet-client-certificate="+c.pki.path("apiserver-kubelet.crt"), "--kubelet-client-key="+c.pki.path("apiserver-kubelet.key"),
		"--kubelet-preferred-address-types=InternalIP"))
	expect.EventuallyNoError(c, "the API server is ready", func() error {
		_, err := c.try("kubectl", "get", "--raw", "/readyz")
		return err
	})
}

// startControllers needs a ready API server: the controller manager ends where its roles are missing.
func (c *cluster) startControllers() {
	c.Helper()
	manager, err := c.pki.kubeconfig("manager", "system:kube-controller-manager")
	expect.NoError(c, err)
	scheduler, err := c.pki.kubeconfig("scheduler", "system:kube-scheduler")
	expect.NoError(c, err)
	common := func(conf string) []string {
		return []string{
			"--kubeconfig=" + conf, "--authentication-kubeconfig=" + conf, "--authorization-kubeconfig=" + conf, "--leader-elect=false",
			"--bind-address=127.0.0.1",
		}
	}
	expect.NoError(c, c.control.start(append([]string{
		filepath.Join(c.bin, "kube-controller-manager"), "--service-account-private-key-file=" + c.pki.path("sa.key"),
		"--root-ca-file=" + c.pki.path("ca.crt"), "--use-service-account-credentials", "--allocate-node-cidrs", "--cluster-cidr=" + c.ip.pods(),
		"--service-cluster-ip-range=" + c.ip.services(),
	}, common(manager)...)...))
	expect.NoError(c, c.control.start(append([]string{filepath.Join(c.bin, "kube-scheduler")}, common(scheduler)...)...))
}

// try runs a program beside the control plane, in the repository, as an administrator.
func (c *cluster) try(argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := c.prepare(ctx, argv...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%q: %w\n%s", argv, err, out)
	}
	return string(out), err
}

// plug connects a port of the control plane's machine to its bridge.
func (c *cluster) plug(port string) error {
	return c.control.host.Do(func() error {
		bridge, err := netlink.LinkByName("bridge0")
		if err != nil {
			return err
		}
		link, err := netlink.LinkByName(port)
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(link, bridge)
	})
}

// route adds a route of a machine.
func (m *machine) route(to, via string) error {
	_, network, err := net.ParseCIDR(to)
	if err != nil {
		return err
	}
	return m.host.Do(func() error { return netlink.RouteReplace(&netlink.Route{Dst: network, Gw: net.ParseIP(via)}) })
}
