// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/test/expect"
)

// TestManifestsAreAdmitted applies all rendered manifests, also with everything enabled, as `kubectl apply --server-side` does,
// with the API server's validation.
func TestManifestsAreAdmitted(t *testing.T) {
	a := startAPI(t)
	for _, plural := range []string{"podmonitors", "prometheusrules"} {
		a.defineMonitoring(plural)
	}
	for _, path := range []string{kustomized("spread"), kustomized("mesh"), kustomized("cleanup-spread"), kustomized("cleanup-mesh"), "testdata/everything.yaml"} {
		for _, o := range manifest(t, path) {
			expect.EventuallyNoError(a, path+": "+o.GetKind(), func() error { return a.apply(o) })
		}
		a.podsAreAdmittedOnlyAsPrivileged(path)
	}
}

// defineMonitoring defines a kind of the Prometheus operator, which a cluster may lack. It updates the CRD until discovery has
// it: of two CRDs that are created at once, discovery may miss the second until it changes.
func (a *api) defineMonitoring(plural string) {
	a.Helper()
	kind := map[string]string{"podmonitors": "PodMonitor", "prometheusrules": "PrometheusRule"}[plural]
	group := "monitoring.coreos.com"
	try := 0
	expect.EventuallyNoError(a, "there are "+plural, func() error {
		try++
		err := a.apply(&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": map[string]any{"name": plural + "." + group, "annotations": map[string]any{"try": strconv.Itoa(try)}},
			"spec": map[string]any{
				"group": group, "scope": "Namespaced", "names": map[string]any{"plural": plural, "kind": kind},
				"versions": []any{map[string]any{
					"name": "v1", "served": true, "storage": true,
					"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
				}},
			},
		}})
		if err == nil {
			a.mapper.Reset()
			_, err = a.mapper.RESTMapping(schema.GroupKind{Group: group, Kind: kind}, "v1")
		}
		return err
	})
}

// podsAreAdmittedOnlyAsPrivileged creates a DaemonSet's pod: no controller does so here.
func (a *api) podsAreAdmittedOnlyAsPrivileged(path string) {
	a.Helper()
	template := agentPod(a, path)
	for name, value := range template.Labels {
		if errs := validation.IsValidLabelValue(value); len(errs) > 0 {
			a.Errorf("%s: the label %s: %v", path, name, errs)
		}
	}
	enforce := func(level string) {
		patch := `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"` + level + `"}}}`
		_, err := a.clients.CoreV1().Namespaces().Patch(a.Context(), namespace, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		expect.NoError(a, err)
	}
	admitted := func() error {
		_, err := a.clients.CoreV1().Pods(namespace).Create(a.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "agent-", Labels: template.Labels}, Spec: template.Spec,
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	expect.EventuallyNoError(a, path+": its pod is admitted", admitted)
	enforce("baseline")
	expect.EventuallyNoError(a, "pod security of the namespace to take effect", func() error {
		if err := admitted(); err == nil || !strings.Contains(err.Error(), "violates PodSecurity") {
			return apierrors.NewConflict(corev1.Resource("pods"), "agent", err)
		}
		return nil
	})
	enforce("privileged")
	expect.EventuallyNoError(a, "pod security to be lifted", admitted)
}

func TestPolicyAdmitsOnlyOwnNodeWrites(t *testing.T) {
	l := newLab(t, 2)
	l.allow() // so that only the policy can deny
	n := l.nodes[0]
	cfg := rest.AnonymousClientConfig(l.cfg)
	cfg.BearerToken = l.nodeToken(n.name)
	agent := dynamic.NewForConfigOrDie(cfg).Resource(rwnodes)
	own, err := l.clients.CoreV1().Nodes().Get(t.Context(), n.name, metav1.GetOptions{})
	expect.NoError(l, err)
	other, err := l.clients.CoreV1().Nodes().Get(t.Context(), l.nodes[1].name, metav1.GetOptions{})
	expect.NoError(l, err)
	owner := func(node *corev1.Node, more map[string]any) map[string]any {
		o := map[string]any{"apiVersion": "v1", "kind": "Node", "name": node.Name, "uid": string(node.UID)}
		for k, v := range more {
			o[k] = v
		}
		return o
	}
	try := func(name string, meta, spec map[string]any) error {
		meta["name"] = name
		o := map[string]any{"apiVersion": "ropewalk.io/v1alpha1", "kind": "RopewalkNode", "metadata": meta}
		if spec != nil {
			o["spec"] = spec
		}
		_, err := agent.Create(t.Context(), &unstructured.Unstructured{Object: o}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	right := []any{owner(own, nil)}
	expect.EventuallyNoError(l, "the policy admits a valid RopewalkNode", func() error { return try(n.name, map[string]any{"ownerReferences": right}, nil) })
	for what, c := range map[string]struct {
		name string
		meta map[string]any
		spec map[string]any
	}{
		"without an owner":      {n.name, map[string]any{}, nil},
		"owned by another node": {n.name, map[string]any{"ownerReferences": []any{owner(other, nil)}}, nil},
		"with two owners":       {n.name, map[string]any{"ownerReferences": []any{owner(own, nil), owner(other, nil)}}, nil},
		"with blockOwnerDeletion": {
			n.name, map[string]any{"ownerReferences": []any{owner(own, map[string]any{"blockOwnerDeletion": true})}}, nil,
		},
		"with a finalizer":         {n.name, map[string]any{"ownerReferences": right, "finalizers": []any{"example.org/never"}}, nil},
		"with labels":              {n.name, map[string]any{"ownerReferences": right, "labels": map[string]any{"a": "b"}}, nil},
		"with annotations":         {n.name, map[string]any{"ownerReferences": right, "annotations": map[string]any{"a": "b"}}, nil},
		"in the name of another":   {other.Name, map[string]any{"ownerReferences": []any{owner(other, nil)}}, nil},
		"in the name of no node":   {"node-99", map[string]any{"ownerReferences": right}, nil},
		"under a name to be found": {"", map[string]any{"generateName": n.name, "ownerReferences": right}, nil},
		"that asks for something":  {n.name, map[string]any{"ownerReferences": right}, map[string]any{"endpoint": "192.0.2.66"}},
	} {
		expect.EventuallyNoError(l, "the policy denies a RopewalkNode "+what, func() error {
			if err := try(c.name, c.meta, c.spec); err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'ropewalk-spread'") {
				return apierrors.NewConflict(corev1.Resource("ropewalknodes"), c.name, err)
			}
			return nil
		})
	}
}
