// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/test/expect"
)

// kubectlBinary builds kubectl once.
var kubectlBinary = sync.OnceValues(func() (string, error) {
	bin := filepath.Join(suite.TempDir(), "kubectl")
	if out, err := exec.Command("go", "build", "-o", bin, "k8s.io/kubernetes/cmd/kubectl").CombinedOutput(); err != nil {
		return "", fmt.Errorf("building kubectl: %w\n%s", err, out)
	}
	return bin, nil
})

// pair is two clusters whose nodes and API servers are on one bridge.
type pair struct {
	east, west *lab
	kubeconfig string // with the contexts east and west
	pods       []*pod // of both
}

// newPair returns two clusters of two nodes each, with pods and agents.
func newPair(t *testing.T) *pair {
	t.Helper()
	east := newLab(t, 2)
	west := &lab{api: startAPIOf(t, otherServer), net: east.net, fabric: east.fabric, server: "192.0.2.253", dir: t.TempDir()}
	t.Cleanup(west.clear)
	expect.NoError(t, east.fabric.Do(func() error {
		bridge, err := netlink.LinkByName("bridge0")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(bridge, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(west.server), Mask: net.CIDRMask(24, 32)}})
	}))
	west.addDoor()
	west.addNode(3)
	west.addNode(4)
	p := &pair{east: east, west: west}
	for _, n := range west.nodes {
		n.layRoutes()
		n.layRoutesTo(east.nodes)
	}
	for _, n := range east.nodes {
		n.layRoutesTo(west.nodes)
	}
	for _, l := range []*lab{east, west} {
		l.applyFile(kustomized("mesh"))
		p.pods = append(p.pods, l.startCluster()...)
	}
	p.writeKubeconfig()
	return p
}

// startCluster adds a pod to each node, and starts the agents with the cluster's own pod prefixes.
func (l *lab) startCluster() (pods []*pod) {
	l.Helper()
	for _, n := range l.nodes {
		pods = append(pods, n.addPod())
	}
	for _, n := range l.nodes {
		args := []string{"--mode", "mesh", "--key-dir", n.keys, "--tunnel", n.tunnel(), "--cleartext=never"}
		for _, o := range l.nodes {
			args = append(args, "--pod-cidr", o.pods.String())
		}
		n.start(args...)
	}
	l.awaitStatus("the nodes of a cluster are peers", func(st v1alpha1.NodeStatus) bool { return st.PublicKey != "" && int(st.Peers) == len(l.nodes)-1 })
	return pods
}

func (p *pair) writeKubeconfig() {
	p.east.Helper()
	c := clientcmdapi.NewConfig()
	for name, l := range map[string]*lab{"east": p.east, "west": p.west} {
		c.Clusters[name] = &clientcmdapi.Cluster{Server: l.cfg.Host, CertificateAuthorityData: l.cfg.CAData}
		c.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: l.cfg.BearerToken}
		c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	}
	p.kubeconfig = filepath.Join(p.east.TempDir(), "config")
	expect.NoError(p.east, clientcmd.WriteToFile(*c, p.kubeconfig))
}

// export runs `ropewalk mesh export` in one cluster for the other.
func (p *pair) export(from, to string, args ...string) (manifest []byte, err error) {
	bin, err := agentBinary()
	expect.NoError(p.east, err)
	args = append([]string{"mesh", "export", "--kubeconfig", p.kubeconfig, "--context", from, "--cluster-name", from, "--check-context", to}, args...)
	cmd := exec.CommandContext(p.east.Context(), bin, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if manifest, err = cmd.Output(); err != nil {
		err = errors.New(stderr.String())
	}
	return manifest, err
}

// introduce makes one cluster's nodes peers of the other's, with the commands of docs/kubernetes.md.
func (p *pair) introduce(from, to string, args ...string) {
	p.east.Helper()
	manifest, err := p.export(from, to, args...)
	expect.NoError(p.east, err)
	if out, err := p.apply(from, to, manifest); err != nil {
		p.east.Fatalf("%v: %s", err, out)
	}
}

// apply runs kubectl with a manifest.
func (p *pair) apply(from, to string, manifest []byte) (out []byte, err error) {
	p.east.Helper()
	bin, err := kubectlBinary()
	expect.NoError(p.east, err)
	cmd := exec.CommandContext(p.east.Context(), bin, "--kubeconfig", p.kubeconfig, "--context", to, "apply", "-f", "-",
		"--prune", "-l", "ropewalk.io/cluster="+from, "--prune-allowlist", "ropewalk.io/v1alpha1/RopewalkPeer")
	cmd.Env, cmd.Stdin = []string{"HOME=" + p.east.TempDir()}, bytes.NewReader(manifest)
	return cmd.CombinedOutput()
}

// imported returns the names of a cluster's RopewalkPeers.
func (l *lab) imported() string {
	l.Helper()
	all, err := l.dynamic.Resource(rwpeers).List(l.Context(), metav1.ListOptions{})
	expect.NoError(l, err)
	var names []string
	for i := range all.Items {
		names = append(names, all.Items[i].GetName())
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func TestClustersReachEachOtherByExports(t *testing.T) {
	p := newPair(t)
	p.introduce("east", "west")
	p.introduce("west", "east")
	for _, n := range append(slices.Clone(p.east.nodes), p.west.nodes...) {
		n.shows("ropewalk_agent_external_peers 2\n")
	}
	e := p.east.eavesdrop()
	p.east.reach(p.pods)
	for i, from := range p.pods {
		expect.NoError(t, from.exchange(p.pods[(i+2)%len(p.pods)])) // in the other cluster
	}
	e.stop(p.east)
	if e.seen() < 100 {
		t.Errorf("only %d encrypted messages were seen", e.seen())
	}
	for peer, l := range map[string]*lab{"east.node-1": p.west, "east.node-2": p.west, "west.node-3": p.east, "west.node-4": p.east} {
		expect.EventuallyNoError(t, "the condition of "+peer, func() error {
			c, err := l.accepted(peer)
			if err == nil && c["status"] != "True" {
				err = fmt.Errorf("%v", c)
			}
			return err
		})
	}

	// A node leaves one cluster: the next export removes it from the other.
	gone := p.west.nodes[1]
	gone.stop()
	expect.NoError(t, p.west.clients.CoreV1().Nodes().Delete(t.Context(), gone.name, metav1.DeleteOptions{}))
	expect.EventuallyNoError(t, "the export without the node", func() error {
		p.introduce("west", "east")
		if got := p.east.imported(); got != "west.node-3" {
			return errors.New(got)
		}
		return nil
	})
	p.east.nodes[0].shows("ropewalk_agent_external_peers 1\n")
	p.east.reach(p.pods[:3])

	// A node with the pods of the other cluster.
	p.west.createNode(1, nil)
	if out, err := p.export("east", "west"); err == nil || len(out) > 0 || !strings.Contains(err.Error(), "overlaps the pods of node node-1") {
		t.Errorf("got %s, error %v, want that it overlaps", out, err)
	}
	if out, err := p.apply("east", "west", nil); err == nil || p.west.imported() != "east.node-1 east.node-2" {
		t.Errorf("without a manifest: %s, %v, RopewalkPeers %s", out, err, p.west.imported())
	}
}

func TestGatewaysForwardBetweenClusters(t *testing.T) {
	p := newPair(t)
	p.introduce("east", "west", "--gateway", "node-1", "--via", "node-3")
	p.introduce("west", "east", "--gateway", "node-3", "--via", "node-1", "--pod-cidr", "10.244.3.0/24,10.244.4.0/24")
	for i, n := range append(slices.Clone(p.east.nodes), p.west.nodes...) {
		n.shows(fmt.Sprintf("ropewalk_agent_external_peers %d\n", 1-i%2))
	}
	e := p.east.eavesdrop()
	p.east.reach(p.pods)
	for i, from := range p.pods {
		expect.NoError(t, from.exchange(p.pods[len(p.pods)-1-i]))
	}
	e.stop(p.east)
	if e.seen() < 100 {
		t.Errorf("only %d encrypted messages were seen", e.seen())
	}

	// Without the gateway's agent packets are dropped: they do not leave in the clear.
	p.east.nodes[0].stop()
	p.east.refused(p.pods[1], p.pods[3])
	if out, err := p.export("east", "west", "--via", "node-9"); err == nil || len(out) > 0 || !strings.Contains(err.Error(), "has no node node-9") {
		t.Errorf("got %s, error %v, want that there is no such node", out, err)
	}
}
