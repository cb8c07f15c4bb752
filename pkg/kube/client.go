// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/pkg/kube/v1alpha1"
)

// fieldManager is the agent's name for the API.
const fieldManager = "ropewalk-agent"

// client speaks of two types of object and no more.
type client struct {
	core rest.Interface
	own  rest.Interface
}

func newClient(cfg *rest.Config) (*client, error) {
	scheme := runtime.NewScheme()
	registerNodeTypes(scheme)
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	open := func(path string, gv schema.GroupVersion, content, accept string) (rest.Interface, error) {
		c := rest.CopyConfig(cfg)
		c.APIPath, c.GroupVersion = path, &gv
		c.ContentType, c.AcceptContentTypes = content, accept
		c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
		return rest.RESTClientFor(c)
	}
	core, err := open("/api", schema.GroupVersion{Version: "v1"}, runtime.ContentTypeProtobuf,
		runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	// An API server has custom resources in nothing else.
	own, err := open("/apis", v1alpha1.GroupVersion(), runtime.ContentTypeJSON, runtime.ContentTypeJSON)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return &client{core: core, own: own}, nil
}

// writeTimeoutAPI is how long a write may take, with all that client-go repeats of it: it does so for as long as a server says, and
// meanwhile nothing else is done for the node.
const writeTimeoutAPI = 10 * time.Second

// create makes the RopewalkNode of a node, which owns it: with the node, it goes. One that is there already is no error.
func (c *client) create(ctx context.Context, owner *node) error {
	n := &v1alpha1.RopewalkNode{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion().String(), Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{
			Name:            owner.Name,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: owner.Name, UID: owner.UID}},
		},
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeoutAPI)
	defer cancel()
	err := c.own.Post().Resource(v1alpha1.Resource).Body(n).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating the RopewalkNode %s: %w", owner.Name, err)
	}
	return nil
}

// apply makes the status be as given (server-side apply): what an earlier agent told and this one does not is gone.
func (c *client) apply(ctx context.Context, name string, status v1alpha1.NodeStatus) error {
	body, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion().String(), "kind": v1alpha1.Kind, "metadata": map[string]string{"name": name},
		"status": status,
	})
	ctx, cancel := context.WithTimeout(ctx, writeTimeoutAPI)
	defer cancel()
	if err == nil {
		err = c.own.Patch(types.ApplyPatchType).Resource(v1alpha1.Resource).Name(name).SubResource("status").
			Param("fieldManager", fieldManager).Param("force", "true").Body(body).Do(ctx).Error()
	}
	if err != nil {
		return fmt.Errorf("writing the status of the RopewalkNode %s: %w", name, err)
	}
	return nil
}
