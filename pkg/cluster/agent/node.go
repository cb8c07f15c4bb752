// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// node has the fields of a Node (core/v1) that the agent reads. The rest, about ten kilobytes each, is not stored. It is
// decoded from protobuf or JSON.
type node struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		PodCIDRs []string    `json:"podCIDRs"`
		Taints   []nodeTaint `json:"taints"`
	} `json:"spec"`
	Status struct {
		Addresses []nodeAddress `json:"addresses"`
	} `json:"status"`

	Platform string       `json:"-"` // of platform, once the labels have been dropped
	Settings nodeSettings `json:"-"` // of its RopewalkNode
}

// labelOS is corev1.LabelOSStable. Agents run on nodes where it is linux.
const labelOS, linux = "kubernetes.io/os", "linux"

// labelType is set by Virtual Kubelet to its own name. Such a node has no host on which an agent could run, and claims any operating system.
const labelType, virtualKubelet = "type", "virtual-kubelet"

// platform returns the node's operating system, virtualKubelet, or "" if it is unknown.
func (n *node) platform() string {
	if n.Labels[labelType] == virtualKubelet {
		return virtualKubelet
	}
	return cmp.Or(n.Labels[labelOS], n.Platform)
}

// runsNoAgent reports whether the node's platform is known and cannot run an agent.
func (n *node) runsNoAgent() bool {
	p := n.platform()
	return p != "" && p != linux
}

// trimObject drops large fields that nobody reads, before the informer stores an object. Of the labels, those stay that may exclude a node.
func trimObject(object any) (any, error) {
	if n, ok := object.(*node); ok {
		n.Platform = n.platform() // an object may be trimmed twice
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t nodeTaint) bool { return t.Key != startupTaint })
	}
	if m, ok := object.(metav1.Object); ok {
		m.SetManagedFields(nil)
		m.SetAnnotations(nil)
		m.SetLabels(restricted(m.GetLabels()))
		shareOwnerStrings(m)
	}
	if o, ok := object.(runtime.Object); ok {
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	return object, nil
}

// restricted returns the labels that may exclude a node, since kubelets cannot set them.
func restricted(labels map[string]string) (some map[string]string) {
	for key, value := range labels {
		if strings.HasPrefix(key, v1alpha1.RestrictedPrefix) {
			if some == nil {
				some = map[string]string{}
			}
			some[key] = value
		}
	}
	return some
}

// shareOwnerStrings replaces the strings of a Node as an owner by others of the same text: each decoded object has its own.
func shareOwnerStrings(m metav1.Object) {
	owners := m.GetOwnerReferences()
	for i := range owners {
		if o := &owners[i]; o.APIVersion == "v1" && o.Kind == "Node" && o.Name == m.GetName() {
			o.APIVersion, o.Kind, o.Name = "v1", "Node", m.GetName()
		}
	}
}

// hasStartupTaint reports whether the node waits for its agent.
func (n *node) hasStartupTaint() bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t nodeTaint) bool { return t.Key == startupTaint })
}

type nodeTaint struct {
	Key string `json:"key"`
}

type nodeAddress struct {
	Type    string `json:"type"`
	Address string `json:"address"`
}

// internalIP is the type of the addresses that nodes use among each other.
const internalIP = "InternalIP"

type nodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []node `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (n *node) DeepCopyObject() runtime.Object {
	c := *n
	n.DeepCopyInto(&c.ObjectMeta)
	c.Spec.PodCIDRs = append([]string(nil), n.Spec.PodCIDRs...)
	c.Spec.Taints = append([]nodeTaint(nil), n.Spec.Taints...)
	c.Status.Addresses = append([]nodeAddress(nil), n.Status.Addresses...)
	return &c
}

// DeepCopyObject implements runtime.Object.
func (l *nodeList) DeepCopyObject() runtime.Object {
	c := &nodeList{TypeMeta: l.TypeMeta, Items: v1alpha1.DeepCopies(l.Items)}
	l.DeepCopyInto(&c.ListMeta)
	return c
}

func registerNodeTypes(s *runtime.Scheme) {
	v1 := schema.GroupVersion{Version: "v1"}
	s.AddKnownTypeWithName(v1.WithKind("Node"), &node{})
	s.AddKnownTypeWithName(v1.WithKind("NodeList"), &nodeList{})
	metav1.AddToGroupVersion(s, v1)
}
