// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Resource is the name under which the API serves the nodes.
const Resource = "ropewalknodes"

// Kind is the name of the type in manifests.
const Kind = "RopewalkNode"

// GroupVersion is the API's: ropewalk.io/v1alpha1.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "ropewalk.io", Version: "v1alpha1"}
}

// AddToScheme makes the types known to a scheme. It never fails.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &RopewalkNode{}, &RopewalkNodeList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}
