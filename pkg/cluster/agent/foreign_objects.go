// SPDX-License-Identifier: Apache-2.0

package agent

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The agent reads a few fields of other projects' objects. It has types of its own for these, which take a fraction of the memory of the
// complete ones.

// apiObject is a pointer to a T that is an object of the API.
type apiObject[T any] interface {
	*T
	runtime.Object
}

// objectList is a list as the API server sends it.
type objectList[T any, P apiObject[T]] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []T `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *objectList[T, P]) DeepCopyObject() runtime.Object {
	c := &objectList[T, P]{TypeMeta: l.TypeMeta, Items: deepCopies[T, P](l.Items)}
	l.DeepCopyInto(&c.ListMeta)
	return c
}

// deepCopies returns deep copies of a list's items.
func deepCopies[T any, P apiObject[T]](items []T) []T {
	copies := make([]T, len(items))
	for i := range items {
		copies[i] = *P(&items[i]).DeepCopyObject().(P)
	}
	return copies
}
