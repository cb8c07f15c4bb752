// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The lists of objects.
type (
	RopewalkNodeList         = List[RopewalkNode, *RopewalkNode]
	RopewalkAnnouncementList = List[RopewalkAnnouncement, *RopewalkAnnouncement]
	RopewalkPeerList         = List[RopewalkPeer, *RopewalkPeer]
	RopewalkMeshList         = List[RopewalkMesh, *RopewalkMesh]
)

// Object is a pointer to a T that is an object of the API.
//
// +kubebuilder:object:generate=false
type Object[T any] interface {
	*T
	runtime.Object
}

// List is a list of objects of the API, of this group or another one.
//
// +kubebuilder:object:generate=false
type List[T any, P Object[T]] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []T `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *List[T, P]) DeepCopyObject() runtime.Object {
	c := &List[T, P]{TypeMeta: l.TypeMeta, Items: DeepCopies[T, P](l.Items)}
	l.DeepCopyInto(&c.ListMeta)
	return c
}

// DeepCopies returns deep copies of a list's items.
func DeepCopies[T any, P Object[T]](items []T) []T {
	copies := make([]T, len(items))
	for i := range items {
		copies[i] = *P(&items[i]).DeepCopyObject().(P)
	}
	return copies
}
