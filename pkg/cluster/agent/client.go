// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// fieldManager is the agent's name for server-side apply.
const fieldManager = "ropewalk-agent"

// outdatedManager is its name while it writes one condition alone. Under fieldManager, the API server would remove all fields that an agent of
// another version has written.
const outdatedManager = fieldManager + "-crd"

// client accesses Nodes (core) and ropewalk's objects (own).
type client struct {
	core    rest.Interface
	own     rest.Interface
	manager string // of applies
	dry     bool   // the API server checks what is applied, and does not store it
}

// dryRun returns a client whose applies are dry runs.
func (c *client) dryRun() *client { return &client{c.core, c.own, c.manager, true} }

// as returns a client that applies under another manager's name.
func (c *client) as(manager string) *client { return &client{c.core, c.own, manager, c.dry} }

func newClient(cfg *rest.Config) (*client, error) {
	scheme := runtime.NewScheme()
	registerNodeTypes(scheme)
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	core, err := openREST(cfg, scheme, "/api", schema.GroupVersion{Version: "v1"}, runtime.ContentTypeProtobuf,
		runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON)
	if err != nil {
		return nil, fmt.Errorf("creating the API client: %w", err)
	}
	// API servers serve custom resources as JSON only.
	own, err := openREST(cfg, scheme, "/apis", v1alpha1.GroupVersion(), runtime.ContentTypeJSON, runtime.ContentTypeJSON)
	if err != nil {
		return nil, fmt.Errorf("creating the API client: %w", err)
	}
	return &client{core: core, own: own, manager: fieldManager}, nil
}

// openForeign returns a client for the objects of a kind, which T has fields of.
func openForeign[T any, P v1alpha1.Object[T]](cfg *rest.Config, kind schema.GroupVersionKind) (rest.Interface, error) {
	version, list := kind.GroupVersion(), kind
	list.Kind += "List"
	scheme := runtime.NewScheme()
	scheme.AddKnownTypeWithName(kind, P(new(T)))
	scheme.AddKnownTypeWithName(list, &v1alpha1.List[T, P]{})
	metav1.AddToGroupVersion(scheme, version)
	c, err := openREST(cfg, scheme, "/apis", version, runtime.ContentTypeJSON, runtime.ContentTypeJSON)
	if err != nil {
		return nil, fmt.Errorf("creating the client for objects of kind %s: %w", kind.Kind, err)
	}
	return c, nil
}

// openREST returns a client for the types of a scheme.
func openREST(cfg *rest.Config, scheme *runtime.Scheme, path string, gv schema.GroupVersion, content, accept string) (rest.Interface, error) {
	c := rest.CopyConfig(cfg)
	c.APIPath, c.GroupVersion = path, &gv
	c.ContentType, c.AcceptContentTypes = content, accept
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	return rest.RESTClientFor(c)
}

// pageSize is the number of objects per list request.
const pageSize = 500

// nodes returns all Nodes. It reads them in pages and trims each, so that the whole is never in memory.
func (c *client) nodes(ctx context.Context) (*nodeList, error) {
	all := &nodeList{}
	for next := ""; ; {
		page := &nodeList{}
		err := c.core.Get().Resource("nodes").Param("limit", strconv.Itoa(pageSize)).Param("continue", next).Do(ctx).Into(page)
		if err != nil {
			return nil, fmt.Errorf("listing Nodes: %w", err)
		}
		for i := range page.Items {
			_, _ = trimObject(&page.Items[i])
		}
		all.Items, all.ListMeta = append(all.Items, page.Items...), page.ListMeta
		if next = page.Continue; next == "" {
			return all, nil
		}
	}
}

// node returns a Node.
func (c *client) node(ctx context.Context, name string) (*node, error) {
	n := &node{}
	if err := c.core.Get().Resource("nodes").Name(name).Do(ctx).Into(n); err != nil {
		return nil, fmt.Errorf("reading the Node %s: %w", name, err)
	}
	return n, nil
}

// ropewalkNode returns the RopewalkNode of that name; nil: there is none.
func (c *client) ropewalkNode(ctx context.Context, name string) (*v1alpha1.RopewalkNode, error) {
	rn := &v1alpha1.RopewalkNode{}
	switch err := c.own.Get().Resource(v1alpha1.Resource).Name(name).Do(ctx).Into(rn); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading the RopewalkNode %s: %w", name, err)
	}
	return rn, nil
}

// list calls a function with each object of a resource, page by page.
func list(ctx context.Context, c rest.Interface, resource string, with func(item []byte) error) error {
	next := ""
	for {
		body, err := c.Get().Resource(resource).Param("limit", strconv.Itoa(pageSize)).Param("continue", next).
			SetHeader("Accept", "application/json").Do(ctx).Raw()
		if err != nil {
			return explainListError(resource, err)
		}
		var page struct {
			Metadata metav1.ListMeta   `json:"metadata"`
			Items    []json.RawMessage `json:"items"`
		}
		if err = json.Unmarshal(body, &page); err != nil {
			return fmt.Errorf("reading the list of %s: %w", resource, err)
		}
		for _, item := range page.Items {
			if err := with(item); err != nil {
				return fmt.Errorf("reading the list of %s: %w", resource, err)
			}
		}
		if next = page.Metadata.Continue; next == "" {
			return nil
		}
	}
}

// explainListError adds the remedy to an error.
func explainListError(resource string, err error) error {
	switch {
	case apierrors.IsNotFound(err) && (resource == v1alpha1.Resource || resource == v1alpha1.AnnouncementResource):
		return ErrNoDefinition
	case apierrors.IsForbidden(err):
		return fmt.Errorf("listing %s: %w: %w", resource, ErrForbidden, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("listing %s: %w", resource, ErrUnauthorized)
	}
	return fmt.Errorf("listing %s: %w", resource, err)
}

// removeTaint removes the taints of a key from a Node, and reports whether there were any. It fails if the Node's taints have changed meanwhile.
func (c *client) removeTaint(ctx context.Context, name, key string) (removed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, apiWriteTimeout)
	defer cancel()
	nodes := func(r *rest.Request) *rest.Request { return r.Resource("nodes").Name(name) }
	body, err := nodes(c.core.Get()).SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx).Raw()
	var n struct {
		Spec struct {
			Taints []map[string]any `json:"taints"`
		} `json:"spec"`
	}
	if err == nil {
		err = json.Unmarshal(body, &n)
	}
	left := slices.DeleteFunc(slices.Clone(n.Spec.Taints), func(t map[string]any) bool { return t["key"] == key })
	if removed = err == nil && len(left) < len(n.Spec.Taints); removed {
		const path = "/spec/taints"
		change := map[string]any{"op": "replace", "path": path, "value": left}
		if len(left) == 0 {
			change = map[string]any{"op": "remove", "path": path}
		}
		if body, err = json.Marshal([]any{map[string]any{"op": "test", "path": path, "value": n.Spec.Taints}, change}); err == nil {
			err = nodes(c.core.Patch(types.JSONPatchType)).Param("fieldManager", fieldManager).Body(body).Do(ctx).Error()
		}
	}
	if err != nil {
		return false, fmt.Errorf("removing the taint %s from the Node %s: %w", key, name, err)
	}
	return removed, nil
}

// namesOnly asks for a table without the objects, which has a hundredth of their size. Its first column is the name.
const namesOnly = "application/json;as=Table;v=v1;g=meta.k8s.io"

// nodeNames returns the names of all Nodes. The answer may be some seconds old: the API server's cache has it.
func (c *client) nodeNames(ctx context.Context) ([]string, error) {
	body, err := c.core.Get().Resource("nodes").Param("includeObject", "None").Param("resourceVersion", "0").
		SetHeader("Accept", namesOnly).Do(ctx).Raw()
	var table struct {
		Rows []struct {
			Cells []any `json:"cells"`
		} `json:"rows"`
	}
	if err == nil {
		err = json.Unmarshal(body, &table)
	}
	if err != nil {
		return nil, fmt.Errorf("listing the names of Nodes: %w", err)
	}
	names := make([]string, len(table.Rows))
	for i := range table.Rows {
		ok := false
		if cells := table.Rows[i].Cells; len(cells) > 0 {
			names[i], ok = cells[0].(string)
		}
		if !ok || names[i] == "" {
			return nil, errors.New("listing the names of Nodes: the table has a row without a name")
		}
	}
	return names, nil
}

// apiWriteTimeout bounds a write, including client-go's retries: a server can ask for long ones, and meanwhile nothing else is
// reconciled.
const apiWriteTimeout = 10 * time.Second

// create creates the RopewalkNode of a node, owned by it so that it is deleted with the node. It succeeds if there is one
// already, and then returns an empty one.
func (c *client) create(ctx context.Context, owner *node) (*v1alpha1.RopewalkNode, error) {
	n := &v1alpha1.RopewalkNode{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion().String(), Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{
			Name:            owner.Name,
			OwnerReferences: []metav1.OwnerReference{ownerReference(owner)},
		},
	}
	ctx, cancel := context.WithTimeout(ctx, apiWriteTimeout)
	defer cancel()
	created := &v1alpha1.RopewalkNode{}
	err := c.own.Post().Resource(v1alpha1.Resource).Body(n).Do(ctx).Into(created)
	switch {
	case apierrors.IsAlreadyExists(err):
		return &v1alpha1.RopewalkNode{}, nil
	case err != nil:
		return nil, fmt.Errorf("creating the RopewalkNode %s: %w", owner.Name, err)
	}
	return created, nil
}

// adopt makes a node the owner of its RopewalkNode, which others created before the node's agent
// ran, so that it is deleted with the node. It first empties the status, which an earlier node
// may have written (a restored backup). It fails if the object has changed meanwhile.
func (c *client) adopt(ctx context.Context, rn *v1alpha1.RopewalkNode, owner *node) error {
	owners := append(slices.Clone(rn.OwnerReferences), ownerReference(owner))
	ctx, cancel := context.WithTimeout(ctx, apiWriteTimeout)
	defer cancel()
	emptied := &v1alpha1.RopewalkNode{}
	err := c.merge(rn.Name, map[string]any{"metadata": map[string]any{"resourceVersion": rn.ResourceVersion}, "status": nil}).SubResource("status").Do(ctx).Into(emptied)
	if err == nil {
		err = c.merge(rn.Name, map[string]any{"metadata": map[string]any{"resourceVersion": emptied.ResourceVersion, "ownerReferences": owners}}).Do(ctx).Error()
	}
	if err != nil {
		return fmt.Errorf("becoming the owner of the RopewalkNode %s: %w", rn.Name, err)
	}
	return nil
}

// merge returns a merge patch of a RopewalkNode.
func (c *client) merge(name string, patch map[string]any) *rest.Request {
	body, _ := json.Marshal(patch) // of strings and plain structs
	return c.own.Patch(types.MergePatchType).Resource(v1alpha1.Resource).Name(name).Param("fieldManager", fieldManager).Body(body)
}

func ownerReference(n *node) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}
}

// apply writes the whole status of a RopewalkNode.
func (c *client) apply(ctx context.Context, name string, status v1alpha1.NodeStatus) error {
	return c.applyStatus(ctx, v1alpha1.Resource, v1alpha1.Kind, name, status)
}

// applyStatus writes a whole status.
func (c *client) applyStatus(ctx context.Context, resource, kind, name string, status any) error {
	return c.applyPart(ctx, resource, kind, metav1.ObjectMeta{Name: name}, "status", status)
}

// announce writes the RopewalkAnnouncement of a node, owned by it so that it is deleted with the node. It creates one where there is none.
func (c *client) announce(ctx context.Context, owner *node, spec v1alpha1.AnnouncementSpec) error {
	meta := metav1.ObjectMeta{Name: owner.Name, OwnerReferences: []metav1.OwnerReference{ownerReference(owner)}}
	return c.applyPart(ctx, v1alpha1.AnnouncementResource, v1alpha1.AnnouncementKind, meta, "spec", spec)
}

// applyPart writes a whole spec or status with server-side apply. It removes fields that its manager wrote before and does not now.
func (c *client) applyPart(ctx context.Context, resource, kind string, meta metav1.ObjectMeta, part string, value any) error {
	identity := map[string]any{"name": meta.Name}
	if len(meta.OwnerReferences) > 0 {
		identity["ownerReferences"] = meta.OwnerReferences
	}
	body, err := json.Marshal(map[string]any{"apiVersion": v1alpha1.GroupVersion().String(), "kind": kind, "metadata": identity, part: value})
	r := c.own.Patch(types.ApplyPatchType).Resource(resource).Name(meta.Name).Param("fieldManager", c.manager).Param("force", "true").Body(body)
	if part == "status" {
		r = r.SubResource(part)
	}
	if c.dry {
		r = r.Param("dryRun", "All")
	}
	ctx, cancel := context.WithTimeout(ctx, apiWriteTimeout)
	defer cancel()
	if err == nil {
		err = r.Do(ctx).Error()
	}
	if err != nil {
		return fmt.Errorf("writing the %s of the %s %s: %w", part, kind, meta.Name, err)
	}
	return nil
}

// withdraw empties the announcement of a node, for which it has no agent. It fails if there is none.
func (c *client) withdraw(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, apiWriteTimeout)
	defer cancel()
	err := c.own.Patch(types.MergePatchType).Resource(v1alpha1.AnnouncementResource).Name(name).Param("fieldManager", fieldManager).
		Body([]byte(`{"spec":null}`)).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("emptying the RopewalkAnnouncement %s: %w", name, err)
	}
	return nil
}
