// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/test/expect"
)

// setLabel gives the node a label.
func (n *node) setLabel(key, value string) {
	n.l.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, key, value)
	_, err := n.l.clients.CoreV1().Nodes().Patch(n.l.Context(), n.name, types.MergePatchType, patch, metav1.PatchOptions{})
	expect.NoError(n.l, err)
}

// has waits until the node's interface and endpoint have what its pool says.
func (n *node) has(mtu int, endpoint string) {
	n.l.Helper()
	expect.EventuallyNoError(n.l, fmt.Sprint(n.name, " has ", mtu, " ", endpoint), func() error {
		st, err := n.l.status(n.name)
		if err != nil {
			return err
		}
		have := 0
		err = n.host.Do(func() error {
			link, err := netlink.LinkByName(n.tunnel())
			if err == nil {
				have = link.Attrs().MTU
			}
			return err
		})
		if err == nil && (have != mtu || len(st.Endpoints) == 0 || string(st.Endpoints[0]) != endpoint) {
			err = fmt.Errorf("mtu %d, endpoints %v", have, st.Endpoints)
		}
		return err
	})
}

// TestLabelsMoveNodesBetweenPools changes labels and the RopewalkMesh under traffic, and listens on the wire.
func TestLabelsMoveNodesBetweenPools(t *testing.T) {
	l := newLab(t, 2)
	small := map[string]any{"nodeSelector": map[string]any{"matchLabels": map[string]any{"pool": "small"}}, "mtu": int64(1300), "port": int64(4500), "persistentKeepalive": int64(25)}
	l.setMesh(map[string]any{"pools": []any{small, map[string]any{"nodeSelector": map[string]any{"matchLabels": map[string]any{"pool": "small"}}, "mtu": int64(1350)}}})
	var pods []*pod
	for _, n := range l.nodes {
		pods = append(pods, n.addPod())
		n.startMesh()
	}
	n := l.nodes[1]
	l.awaitStatus("both are peers", func(st published) bool { return st.PublicKey != "" && st.Peers == 1 })
	l.reach(pods)
	n.has(1440, "192.0.2.2:51820")
	ear := l.eavesdrop()

	n.setLabel("pool", "small")
	n.has(1300, "192.0.2.2:4500")
	l.reach(pods)
	l.nodes[0].has(1440, "192.0.2.1:51820")

	l.setMesh(nil)
	n.has(1440, "192.0.2.2:51820")
	l.reach(pods)
	ear.stop(l)
}

// TestExcludedNodeTakesNoPart: by a label that kubelets cannot set, until it is excluded no more.
func TestExcludedNodeTakesNoPart(t *testing.T) {
	l, pods := newMesh(t, 2)
	l.reach(pods)
	n := l.nodes[1]
	key := v1alpha1.RestrictedPrefix + "mesh"
	n.setLabel(key, "no")
	l.setMesh(map[string]any{"exclude": map[string]any{"nodeSelector": map[string]any{"matchLabels": map[string]any{key: "no"}}}})
	expect.EventuallyNoError(l, "it has no routes, and is no peer", func() error {
		if n.ruled() || l.nodes[0].gauge("peers") != 0 || l.nodes[0].gauge("nodes_without_tunnel") != 0 {
			return fmt.Errorf("rule %v, %d peers", n.ruled(), l.nodes[0].gauge("peers"))
		}
		return nil
	})
	l.reach(pods) // in the clear
	l.setMesh(nil)
	l.awaitStatus("both are peers again", func(st published) bool { return st.Peers == 1 })
	e := l.eavesdrop()
	l.reach(pods)
	e.stop(l)
}
