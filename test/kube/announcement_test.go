// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

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
