// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/test/expect"
)

// putConfig writes a RopewalkConfig for the nodes with the label pool=NAME.
func (l *lab) putConfig(name string, settings map[string]any) {
	l.Helper()
	settings["nodeSelector"] = map[string]any{"matchLabels": map[string]any{"pool": name}}
	_, err := l.dynamic.Resource(rwconfigs).Apply(l.Context(), name, newConfig(name, settings), metav1.ApplyOptions{FieldManager: "administrator", Force: true})
	expect.NoError(l, err)
}

// label puts the node into a pool.
func (n *node) label(pool string) {
	n.l.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"pool":%q}}}`, pool)
	_, err := n.l.clients.CoreV1().Nodes().Patch(n.l.Context(), n.name, types.MergePatchType, patch, metav1.PatchOptions{})
	expect.NoError(n.l, err)
}

// follows waits until the node reports a RopewalkConfig in a state, and its interface and endpoint have what it says.
func (n *node) follows(want string, mtu int, endpoint string) {
	n.l.Helper()
	expect.EventuallyNoError(n.l, n.name+" follows "+want, func() error {
		st, err := n.l.status(n.name)
		if err != nil {
			return err
		}
		got := ""
		if st.Config != nil {
			got = st.Config.Name + " " + string(st.Config.State)
		}
		have := 0
		err = n.host.Do(func() error {
			link, err := netlink.LinkByName(n.tunnel())
			if err == nil {
				have = link.Attrs().MTU
			}
			return err
		})
		if err == nil && (got != want || have != mtu || len(st.Endpoints) == 0 || string(st.Endpoints[0]) != endpoint) {
			err = fmt.Errorf("config %q, mtu %d, endpoints %v", got, have, st.Endpoints)
		}
		return err
	})
}

// TestLabelsMoveNodesBetweenPools changes labels and RopewalkConfigs under traffic, and listens on the wire.
func TestLabelsMoveNodesBetweenPools(t *testing.T) {
	l := newLab(t, 2)
	l.applyFile(kustomized("mesh")) // the rights of agents in this mode
	l.putConfig("small", map[string]any{"mtu": int64(1300), "port": int64(4500), "persistentKeepalive": int64(25)})
	l.putConfig("busy", map[string]any{"port": int64(4501), "mtu": int64(1350)})
	var pods []*pod
	for _, n := range l.nodes {
		pods = append(pods, n.addPod())
		n.startMesh()
	}
	n := l.nodes[1]
	l.awaitStatus("both are peers", func(st v1alpha1.NodeStatus) bool { return st.PublicKey != "" && st.Peers == 1 })
	l.reach(pods)
	n.follows("", 1440, "192.0.2.2:51820")
	ear := l.eavesdrop()

	n.label("small")
	n.follows("small Applied", 1300, "192.0.2.2:4500")
	l.reach(pods)
	l.nodes[0].follows("", 1440, "192.0.2.1:51820")

	var taken net.PacketConn
	expect.NoError(l, n.host.Do(func() (err error) {
		taken, err = new(net.ListenConfig).ListenPacket(l.Context(), "udp", ":4501")
		return err
	}))
	t.Cleanup(func() { _ = taken.Close() })
	n.label("busy")
	n.follows("busy Refused", 1300, "192.0.2.2:4500")
	n.shows("ropewalk_agent_config_refused 1\n")
	l.warned(n.name, "RopewalkConfig busy is refused")
	l.counted("busy", v1alpha1.ConfigStatus{ObservedGeneration: 1, RefusingNodes: 1}, metav1.ConditionFalse)

	l.putConfig("small", map[string]any{"mtu": int64(1300), "port": int64(4500)})
	n.label("small")
	n.follows("small Applied", 1300, "192.0.2.2:4500")
	n.shows("ropewalk_agent_config_refused 0\n")
	l.reach(pods)
	ear.stop(l)

	expect.NoError(l, l.dynamic.Resource(rwconfigs).Delete(t.Context(), "small", metav1.DeleteOptions{}))
	n.follows("", 1440, "192.0.2.2:51820")
	l.reach(pods)
}

// counted waits until the status of a RopewalkConfig has the counts, and its condition Accepted a status.
func (l *lab) counted(name string, want v1alpha1.ConfigStatus, accepted metav1.ConditionStatus) {
	l.Helper()
	expect.EventuallyNoError(l, "the status of "+name, func() error {
		o, err := l.dynamic.Resource(rwconfigs).Get(l.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var rc v1alpha1.RopewalkConfig
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &rc); err != nil {
			return err
		}
		got := rc.Status
		if got.ObservedGeneration != want.ObservedGeneration || got.FollowingNodes != want.FollowingNodes || got.PendingNodes != want.PendingNodes ||
			got.RefusingNodes != want.RefusingNodes || len(got.Conditions) != 2 || got.Conditions[0].Status != accepted {
			return fmt.Errorf("got %+v", got)
		}
		return nil
	})
}

// warned waits for an Event of a node's RopewalkNode.
func (l *lab) warned(node, text string) {
	l.Helper()
	expect.EventuallyNoError(l, "an Event of "+node, func() error {
		all, err := l.clients.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{
			FieldSelector: "involvedObject.kind=RopewalkNode,involvedObject.name=" + node,
		})
		if err != nil {
			return err
		}
		for _, e := range all.Items {
			if strings.Contains(e.Message, text) {
				return nil
			}
		}
		return errors.New("there is none")
	})
}
