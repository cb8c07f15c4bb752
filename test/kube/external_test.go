// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

// laptop is a host on the nodes' network that is no node. It is like a pod with the address 10.9.0.2.
type laptop struct {
	pod
	key noise.PrivateKey
}

func (l *lab) addLaptop() *laptop {
	l.Helper()
	key, err := noise.NewPrivateKey(rand.Reader)
	expect.NoError(l, err)
	h, err := l.net.Host("laptop")
	expect.NoError(l, err)
	c, err := l.net.Cable(l.fabric, h, netlab.CableConfig{AddrsB: []netip.Prefix{netip.MustParsePrefix("192.0.2.100/24")}})
	expect.NoError(l, err)
	l.bridge(l.fabric, c.DeviceA)
	return &laptop{pod{n: l.nodes[0], host: h, addr: netip.MustParseAddr("10.9.0.2")}, key}
}

// up starts the laptop's tunnel from a wg-quick file, as docs/kubernetes/mesh.md has it.
func (p *laptop) up() {
	l := p.n.l
	l.Helper()
	text := fmt.Sprintf("[Interface]\nPrivateKey = %s\nAddress = 10.9.0.2/32\n", p.key.Base64())
	for _, n := range l.nodes {
		st, err := l.status(n.name)
		expect.NoError(l, err)
		text += fmt.Sprintf("[Peer]\nPublicKey = %s\nEndpoint = %s\nAllowedIPs = %s\nPersistentKeepalive = 25\n", st.PublicKey, st.Endpoints[0], st.PodCIDRs[0])
	}
	file := filepath.Join(l.TempDir(), "k"+l.net.Tag()+"l.conf")
	expect.NoError(l, os.WriteFile(file, []byte(text), 0o600))
	bin, err := ropewalkBinary()
	expect.NoError(l, err)
	out, err := p.host.Command(l.Context(), bin, "up", file).CombinedOutput()
	if err != nil {
		l.Fatalf("%v: %s", err, out)
	}
	l.Cleanup(func() {
		if out, err := p.host.Command(context.Background(), bin, "down", file).CombinedOutput(); err != nil {
			l.Errorf("%v: %s", err, out)
		}
	})
}

// accepted returns the Accepted condition of a RopewalkPeer.
func (l *lab) accepted(name string) (c map[string]any, err error) {
	o, err := l.dynamic.Resource(rwpeers).Get(l.Context(), name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	if len(all) != 1 {
		return nil, fmt.Errorf("%d conditions", len(all))
	}
	return all[0].(map[string]any), nil
}

func TestLaptopReachesPodsThroughRopewalkPeer(t *testing.T) {
	l := newLab(t, 2)
	l.applyFile(kustomized("mesh")) // the rights of agents in this mode
	p := l.addLaptop()
	for name, spec := range map[string]map[string]any{
		"laptop": {"publicKey": p.key.Public().Base64(), "allowedIPs": []any{"10.9.0.2/32"}},
		"pods":   {"publicKey": noise.PublicKey{9}.Base64(), "allowedIPs": []any{"10.244.2.0/24"}},
		"zoned":  {"publicKey": noise.PublicKey{10}.Base64(), "allowedIPs": []any{"10.9.0.3/32"}, "nodeSelector": map[string]any{"matchLabels": map[string]any{"zone": "b"}}},
	} {
		_, err := l.dynamic.Resource(rwpeers).Create(t.Context(), newPeer(name, spec), metav1.CreateOptions{})
		expect.NoError(l, err)
	}
	var pods []*pod
	for _, n := range l.nodes {
		pods = append(pods, n.addPod())
		n.startMesh()
		expect.NoError(l, pods[len(pods)-1].host.RouteVia(netip.MustParsePrefix("10.9.0.0/16"), n.pods.Addr().Next()))
	}
	l.awaitStatus("both are peers", func(st published) bool { return st.PublicKey != "" && st.Peers == 1 })
	for _, n := range l.nodes {
		n.shows("ropewalk_agent_external_peers 1\n")
	}
	p.up()
	for _, to := range pods {
		expect.EventuallyNoError(l, "the laptop reaches "+to.n.name, func() error { return p.ping(to) })
		expect.EventuallyNoError(l, "the laptop is reached from "+to.n.name, func() error { return to.ping(&p.pod) })
	}
	l.reach(pods)
	l.peersAreReported()
	_, err := l.clients.CoreV1().Nodes().Patch(t.Context(), l.nodes[1].name, types.MergePatchType, []byte(`{"metadata":{"labels":{"zone":"b"}}}`), metav1.PatchOptions{})
	expect.NoError(l, err)
	l.nodes[1].shows("ropewalk_agent_external_peers 2\n")
	l.nodes[0].shows("ropewalk_agent_external_peers 1\n")
	l.agentsMayNotWritePeers(p.key.Public().Base64())

	expect.NoError(l, l.dynamic.Resource(rwpeers).Delete(t.Context(), "laptop", metav1.DeleteOptions{}))
	l.nodes[0].shows("ropewalk_agent_external_peers 0\n")
	l.nodes[1].shows("ropewalk_agent_external_peers 1\n")
	l.refused(&p.pod, pods[0])
	l.refused(pods[1], &p.pod)
}

// peersAreReported expects the conditions of all RopewalkPeers, and an Event of the refused one.
func (l *lab) peersAreReported() {
	l.Helper()
	for name, want := range map[string]string{
		"zoned":  "True Accepted a peer of the nodes in mode mesh with the labels zone=b",
		"laptop": "True Accepted a peer of all nodes in mode mesh", "pods": "False Conflict its allowed IP 10.244.2.0/24 overlaps the pods of node node-2",
	} {
		expect.EventuallyNoError(l, "the condition of "+name, func() error {
			c, err := l.accepted(name)
			if got := fmt.Sprint(c["status"], " ", c["reason"], " ", c["message"]); err == nil && !strings.HasPrefix(got, want) {
				err = errors.New(got)
			}
			return err
		})
	}
	expect.EventuallyNoError(l, "an Event of the refused peer", func() error {
		all, err := l.clients.CoreV1().Events("default").List(l.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=RopewalkPeer,involvedObject.name=pods"})
		if err == nil && len(all.Items) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
}

// agentsMayNotWritePeers tries to change the spec of a RopewalkPeer with an agent's token. Through the status nothing else changes.
func (l *lab) agentsMayNotWritePeers(key string) {
	l.Helper()
	cfg := rest.AnonymousClientConfig(l.cfg)
	cfg.BearerToken = l.nodeToken(l.nodes[0].name)
	agent := dynamic.NewForConfigOrDie(cfg).Resource(rwpeers)
	hostile := newPeer("laptop", map[string]any{"publicKey": key, "allowedIPs": []any{"10.66.0.0/16"}})
	options := metav1.ApplyOptions{FieldManager: "hostile", Force: true}
	_, applied := agent.Apply(l.Context(), "laptop", hostile, options)
	_, created := agent.Create(l.Context(), newPeer("mine", map[string]any{"publicKey": key, "allowedIPs": []any{"10.66.0.0/16"}}), metav1.CreateOptions{})
	deleted := agent.Delete(l.Context(), "laptop", metav1.DeleteOptions{})
	for _, err := range []error{applied, created, deleted} {
		if !apierrors.IsForbidden(err) {
			l.Errorf("an agent's write of a RopewalkPeer: got %v", err)
		}
	}
	o, err := agent.ApplyStatus(l.Context(), "laptop", hostile, options)
	expect.NoError(l, err)
	allowed, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "allowedIPs")
	if len(allowed) != 1 || allowed[0] != "10.9.0.2/32" {
		l.Errorf("the status changed the spec: %v", allowed)
	}
}
