// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/test/expect"
)

// definition returns the CRD of announcements, without some of the fields.
func (a *api) definition(without ...string) *unstructured.Unstructured {
	a.Helper()
	crd := manifest(a, "../../deploy/crd/ropewalk.io_ropewalkannouncements.yaml")[0]
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	expect.NoError(a, err)
	for _, field := range without {
		unstructured.RemoveNestedField(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "spec", "properties", field)
	}
	expect.NoError(a, unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"))
	return crd
}

// TestOutdatedCRDIsReported: an agent that cannot announce that it encrypts traffic between nodes changes nothing, and says so.
func TestOutdatedCRDIsReported(t *testing.T) {
	l := newLab(t, 1)
	n := l.nodes[0]
	l.setMesh(nil)
	expect.NoError(l, l.apply(l.definition("encryptsNodes")))
	expect.EventuallyNoError(l, "the API server refuses the field", func() error {
		if err := n.publishes(map[string]any{"mode": "mesh", "encryptsNodes": true}); err == nil {
			return errors.New("it is accepted")
		}
		return nil
	})
	n.startMesh()
	l.reports(l.nodes, v1alpha1.ConditionReady, metav1.ConditionFalse, "OutdatedCRD", nil)
	if reconciles := n.gauge("reconciles_total"); reconciles != 0 {
		t.Errorf("the agent reconciled %d times", reconciles)
	}
	expect.NoError(l, l.apply(l.definition()))
	l.reports(l.nodes, v1alpha1.ConditionReady, metav1.ConditionTrue, "Reconciled", nil)
}

// TestMissingCRDIsReported: an agent in a cluster without RopewalkAnnouncements changes nothing, says so, and goes on once the CRD is there.
func TestMissingCRDIsReported(t *testing.T) {
	l := newLab(t, 1)
	n := l.nodes[0]
	l.setMesh(nil)
	crds := l.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	expect.NoError(l, crds.Delete(t.Context(), l.definition().GetName(), metav1.DeleteOptions{}))
	expect.EventuallyNoError(l, "the API server has no announcements", func() error {
		_, err := l.dynamic.Resource(rwannouncements).List(t.Context(), metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it has"), err)
	})
	n.startMesh()
	l.reports(l.nodes, v1alpha1.ConditionReady, metav1.ConditionFalse, "OutdatedCRD", nil)
	if reconciles := n.gauge("reconciles_total"); reconciles != 0 {
		t.Errorf("the agent reconciled %d times", reconciles)
	}
	if _, err := n.asks(probes, "/readyz"); err == nil {
		t.Error("the agent is ready")
	}
	expect.NoError(l, l.apply(l.definition()))
	l.reports(l.nodes, v1alpha1.ConditionReady, metav1.ConditionTrue, "Reconciled", nil)
}

// TestMissingPolicyIsReported has the policy without its binding, and then with it.
func TestMissingPolicyIsReported(t *testing.T) {
	l := newLab(t, 1)
	n := l.nodes[0]
	l.setMesh(nil)
	policies := l.dynamic.Resource(bindings)
	binding, err := policies.Get(t.Context(), l.account, metav1.GetOptions{})
	expect.NoError(l, err)
	expect.NoError(l, policies.Delete(t.Context(), l.account, metav1.DeleteOptions{})) // the next test creates it again
	attack := l.attacks(n.name, "another")[0]
	expect.EventuallyNoError(l, "allowed without the policy: "+attack.what, func() error { return attack.try(dry{metav1.DryRunAll}) })
	n.startMesh()
	l.reports(l.nodes, v1alpha1.ConditionAdmissionPolicy, metav1.ConditionFalse, "NotEnforced", nil)
	n.shows(`ropewalk_agent_condition{status="False",type="AdmissionPolicy"} 1`)
	for _, field := range []string{"resourceVersion", "uid", "managedFields", "creationTimestamp"} {
		unstructured.RemoveNestedField(binding.Object, "metadata", field)
	}
	expect.NoError(l, l.apply(binding))
	l.reports(l.nodes, v1alpha1.ConditionAdmissionPolicy, metav1.ConditionTrue, "Enforced", nil)
}

// TestSecondWriterIsReported has a program with an administrator's rights announce another key, as a second machine of the node's name would.
func TestSecondWriterIsReported(t *testing.T) {
	l := newLab(t, 1)
	n := l.nodes[0]
	n.startMesh()
	l.reports(l.nodes, v1alpha1.ConditionSoleWriter, metav1.ConditionTrue, "NoOther", nil)
	l.reports(l.nodes, v1alpha1.ConditionAdmissionPolicy, metav1.ConditionTrue, "Enforced", nil)
	times := 0
	l.reports(l.nodes, v1alpha1.ConditionSoleWriter, metav1.ConditionFalse, "TwoWriters", func() {
		times++
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "ropewalk.io/v1alpha1", "kind": "RopewalkAnnouncement", "metadata": map[string]any{"name": n.name},
			"spec": map[string]any{"writer": "second", "mtu": int64(1280 + times)},
		}}
		_, err := l.dynamic.Resource(rwannouncements).Apply(t.Context(), n.name, o, metav1.ApplyOptions{FieldManager: "second", Force: true})
		expect.NoError(l, err)
	})
	n.shows(`ropewalk_agent_condition{status="False",type="SoleWriter"} 1`)
}
