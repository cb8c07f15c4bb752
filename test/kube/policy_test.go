// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/test/expect"
)

// tooMuch gives agents more rights than they need.
var tooMuch = &unstructured.Unstructured{Object: map[string]any{
	"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": map[string]any{"name": "too-much"},
	"roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
	"subjects": []any{
		map[string]any{"kind": "ServiceAccount", "name": spreadAgent, "namespace": namespace},
		map[string]any{"kind": "ServiceAccount", "name": meshAgent, "namespace": namespace},
	},
}}

// allow gives agents more rights until the test ends, so that only the policy can deny.
func (l *lab) allow() {
	l.Helper()
	expect.NoError(l, l.apply(tooMuch.DeepCopy()))
	l.Cleanup(func() {
		_ = l.dynamic.Resource(grants).Delete(context.Background(), tooMuch.GetName(), metav1.DeleteOptions{})
	})
}

// attack is a request that a node's agent must not be able to make. byPolicy: RBAC alone would allow it.
type attack struct {
	what     string
	byPolicy bool
	try      func(options dry) error
}

// dry is the option for a dry run.
type dry []string

// attacks returns requests with the token of one node's agent, and with one without a node.
func (l *lab) attacks(own, other string) []attack {
	as := func(token string) (nodes, announcements dynamic.ResourceInterface) {
		cfg := rest.AnonymousClientConfig(l.cfg)
		cfg.BearerToken = token
		client := dynamic.NewForConfigOrDie(cfg)
		return client.Resource(rwnodes), client.Resource(rwannouncements)
	}
	object := func(name string, parts map[string]any) *unstructured.Unstructured {
		o := map[string]any{"apiVersion": "ropewalk.io/v1alpha1", "kind": "RopewalkNode", "metadata": map[string]any{"name": name}}
		for part, fields := range parts {
			o[part] = fields
		}
		return &unstructured.Unstructured{Object: o}
	}
	lie := map[string]any{"status": map[string]any{"peers": int64(7)}}
	key := map[string]any{"mode": "mesh", "publicKey": strings.Repeat("A", 42) + "E="}
	spec := map[string]any{"spec": map[string]any{"endpoint": "192.0.2.66"}}
	agent, announcements := as(l.nodeToken(own))
	nobody, nobodys := as(l.token())
	status := func(r dynamic.ResourceInterface, name string, d dry) error {
		_, err := r.ApplyStatus(l.Context(), name, object(name, lie), metav1.ApplyOptions{FieldManager: "hostile", Force: true, DryRun: d})
		return err
	}
	announce := func(r dynamic.ResourceInterface, name, owner string, more map[string]any, d dry) error {
		o := object(name, map[string]any{"spec": key})
		o.SetKind("RopewalkAnnouncement")
		if owner != "" {
			o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: owner, UID: l.uidOf(own)}})
		}
		for field, value := range more {
			expect.NoError(l, unstructured.SetNestedField(o.Object, value, "metadata", field))
		}
		_, err := r.Apply(l.Context(), name, o, metav1.ApplyOptions{FieldManager: "hostile", Force: true, DryRun: d})
		return err
	}
	return []attack{
		{"another node's key", true, func(d dry) error { return announce(announcements, other, other, nil, d) }},
		{"a key with a token that is of no node", true, func(d dry) error { return announce(nobodys, own, own, nil, d) }},
		{"a key for a node that is none", true, func(d dry) error { return announce(announcements, "node-99", own, nil, d) }},
		{"an announcement that outlives its node", true, func(d dry) error {
			return announce(announcements, own, own, map[string]any{"finalizers": []any{"example.org/never"}}, d)
		}},
		{"an announcement with labels", true, func(d dry) error {
			return announce(announcements, own, own, map[string]any{"labels": map[string]any{"a": "b"}}, d)
		}},
		{"an announcement without an owner", true, func(d dry) error {
			_, err := announcements.Patch(l.Context(), own, types.MergePatchType, []byte(`{"metadata":{"ownerReferences":null}}`), metav1.PatchOptions{DryRun: d})
			return err
		}},
		{"to be rid of a node's announcement", false, func(d dry) error {
			return announcements.Delete(l.Context(), own, metav1.DeleteOptions{DryRun: d})
		}},
		{"another node's status", true, func(d dry) error { return status(agent, other, d) }},
		{"a token that is of no node", true, func(d dry) error { return status(nobody, own, d) }},
		{"an object of a node that is none", true, func(d dry) error {
			_, err := agent.Create(l.Context(), object("node-99", nil), metav1.CreateOptions{DryRun: d})
			return err
		}},
		{"its own spec", true, func(d dry) error {
			_, err := agent.Apply(l.Context(), own, object(own, spec), metav1.ApplyOptions{FieldManager: "hostile", Force: true, DryRun: d})
			return err
		}},
		{"another owner of its own", true, func(d dry) error {
			patch := []byte(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"` + own + `","uid":"a"}]}}`)
			_, err := agent.Patch(l.Context(), own, types.MergePatchType, patch, metav1.PatchOptions{DryRun: d})
			return err
		}},
		{"no owner", true, func(d dry) error {
			_, err := agent.Patch(l.Context(), own, types.MergePatchType, []byte(`{"metadata":{"ownerReferences":null}}`), metav1.PatchOptions{DryRun: d})
			return err
		}},
		{"a label on its own", true, func(d dry) error {
			_, err := agent.Patch(l.Context(), own, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{DryRun: d})
			return err
		}},
		{"to be rid of a node", false, func(d dry) error { return agent.Delete(l.Context(), other, metav1.DeleteOptions{DryRun: d}) }},
	}
}

// uidOf returns the UID of a Node.
func (l *lab) uidOf(name string) types.UID {
	l.Helper()
	n, err := l.clients.CoreV1().Nodes().Get(l.Context(), name, metav1.GetOptions{})
	expect.NoError(l, err)
	return n.UID
}

// byPolicy reports whether the policy has denied a request.
func byPolicy(err error) bool {
	return (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'ropewalk-")
}

var (
	bindings = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"}
	grants   = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"}
)

// hostile expects all attacks to fail: by missing rights, or by the policy. The policy must deny them even if agents have more
// rights. Without the policy they succeed, which proves that it is the cause. None changes anything.
func (l *lab) hostile(own, other string) {
	l.Helper()
	attacks := l.attacks(own, other)
	dryRun := dry{metav1.DryRunAll}
	fail := func(a attack, right func(error) bool) {
		l.Helper()
		expect.EventuallyNoError(l, "denied: "+a.what, func() error { // policies and rights take effect with a delay
			if err := a.try(dryRun); !right(err) {
				return errors.Join(errors.New("the answer is another"), err)
			}
			return nil
		})
	}
	for _, a := range attacks {
		if a.byPolicy {
			fail(a, byPolicy)
		} else {
			fail(a, apierrors.IsForbidden)
		}
	}
	l.allow()
	for _, a := range attacks {
		fail(a, byPolicy)
	}
	expect.NoError(l, l.dynamic.Resource(bindings).Delete(l.Context(), l.account, metav1.DeleteOptions{})) // the next test creates it again
	for _, a := range attacks {
		expect.EventuallyNoError(l, "allowed without the policy: "+a.what, func() error { return a.try(dryRun) })
	}
}
