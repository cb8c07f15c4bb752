// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/test/expect"
)

// startupTaint is that of docs/kubernetes/mesh.md.
const startupTaint = "node.ropewalk.io/agent-not-ready"

// TestNodeWaitsForTunnelWithStartupTaint: its agent removes the taint once peers answer, and may change nothing else of Nodes.
func TestNodeWaitsForTunnelWithStartupTaint(t *testing.T) {
	l := newLab(t, 2)
	l.setMesh(nil)
	for _, o := range manifest(t, "testdata/everything.yaml") {
		if slices.Contains([]string{"ClusterRole", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}, o.GetKind()) {
			expect.NoError(l, l.apply(o))
		}
	}
	first, joins := l.nodes[0], l.nodes[1]
	joins.taint(startupTaint, "example.org/other")
	l.mayOnlyRemoveTaint(joins, first)

	joins.runs(fmt.Sprintf("table inet blocked { chain in { type filter hook prerouting priority -400; udp dport %d drop; }; }", port), "nft", "-f", "-")
	first.startMesh("--startup-taint")
	expect.EventuallyNoError(l, "the first node has a key", func() error {
		st, err := l.status(first.name)
		if err == nil && st.PublicKey == "" {
			err = errors.New("none")
		}
		return err
	})
	joins.startMesh("--startup-taint")
	l.reports([]*node{joins}, "PeersReachable", metav1.ConditionFalse, "PeersLost", nil)
	if got := joins.taints(); !slices.Contains(got, startupTaint) {
		t.Errorf("the taints of a node that reaches no other are %q", got)
	}
	joins.runs("", "nft", "delete", "table", "inet", "blocked")
	expect.EventuallyNoError(l, "the taint is removed", func() error {
		if got := joins.taints(); slices.Contains(got, startupTaint) || !slices.Contains(got, "example.org/other") {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
}

// taint adds taints to the node.
func (n *node) taint(keys ...string) {
	n.l.Helper()
	nodes := n.l.clients.CoreV1().Nodes()
	o, err := nodes.Get(n.l.Context(), n.name, metav1.GetOptions{})
	expect.NoError(n.l, err)
	for _, key := range keys {
		o.Spec.Taints = append(o.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
	_, err = nodes.Update(n.l.Context(), o, metav1.UpdateOptions{})
	expect.NoError(n.l, err)
}

// taints returns the keys of the node's taints.
func (n *node) taints() (keys []string) {
	n.l.Helper()
	o, err := n.l.clients.CoreV1().Nodes().Get(n.l.Context(), n.name, metav1.GetOptions{})
	expect.NoError(n.l, err)
	for _, taint := range o.Spec.Taints {
		keys = append(keys, taint.Key)
	}
	return keys
}

// mayOnlyRemoveTaint tries what an attacker with an agent's token would. None changes anything.
func (l *lab) mayOnlyRemoveTaint(own, other *node) {
	l.Helper()
	cfg := rest.AnonymousClientConfig(l.cfg)
	cfg.BearerToken = l.nodeToken(own.name)
	nodes := kubernetes.NewForConfigOrDie(cfg).CoreV1().Nodes()
	try := func(name, patch string) error {
		_, err := nodes.Patch(l.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	o, err := l.clients.CoreV1().Nodes().Get(l.Context(), own.name, metav1.GetOptions{})
	expect.NoError(l, err)
	left := slices.DeleteFunc(o.Spec.Taints, func(t corev1.Taint) bool { return t.Key == startupTaint })
	taints := func(all []corev1.Taint) string {
		text, err := json.Marshal(all)
		expect.NoError(l, err)
		return `"spec":{"taints":` + string(text) + `}`
	}
	removal := taints(left)
	for what, c := range map[string]struct{ name, patch string }{
		"another node":             {other.name, "{" + removal + "}"},
		"all taints":               {own.name, `{"spec":{"taints":null}}`},
		"another taint":            {own.name, "{" + taints(append(slices.Clone(left), corev1.Taint{Key: "a", Effect: corev1.TaintEffectNoExecute})) + "}"},
		"a label":                  {own.name, `{"metadata":{"labels":{"a":"b"}}}`},
		"a label with the removal": {own.name, `{"metadata":{"labels":{"a":"b"}},` + removal + "}"},
		"schedulability":           {own.name, `{"spec":{"unschedulable":true,` + strings.TrimPrefix(removal, `"spec":{`) + "}"},
	} {
		expect.EventuallyNoError(l, "denied: "+what, func() error { // policies take effect with a delay
			if err := try(c.name, c.patch); err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'ropewalk-mesh-taint'") {
				return errors.Join(errors.New("the answer is another"), err)
			}
			return nil
		})
	}
	expect.NoError(l, try(own.name, "{"+removal+"}"))
}
