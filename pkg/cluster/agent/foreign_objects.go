// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
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

// openForeign returns a client for the objects of a kind, which T has fields of.
func openForeign[T any, P apiObject[T]](cfg *rest.Config, kind schema.GroupVersionKind) (rest.Interface, error) {
	version, list := kind.GroupVersion(), kind
	list.Kind += "List"
	scheme := runtime.NewScheme()
	scheme.AddKnownTypeWithName(kind, P(new(T)))
	scheme.AddKnownTypeWithName(list, &objectList[T, P]{})
	metav1.AddToGroupVersion(scheme, version)
	c, err := openREST(cfg, scheme, "/apis", version, runtime.ContentTypeJSON, runtime.ContentTypeJSON)
	if err != nil {
		return nil, fmt.Errorf("creating the client for objects of kind %s: %w", kind.Kind, err)
	}
	return c, nil
}
