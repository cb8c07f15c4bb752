// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// fakeAPI implements the part of an API server that agents use. test/kube uses a real API server.
type fakeAPI struct {
	nodes, agents *collection
	announcements *collection
	external      *collection            // RopewalkPeers
	meshes        *collection            // RopewalkMeshes
	undeclared    atomic.Pointer[string] // a field that the CRDs lack; nil: none
	published     atomic.Pointer[[]byte] // the OpenAPI document of the CRDs; nil: none
	unprotected   atomic.Bool            // no policy keeps agents from writing for other nodes
	refusal       atomic.Int32           // the answer to an announcement; 0: it is taken
	nodeReads     atomic.Int64

	mu     sync.Mutex
	events []apiEvent
}

func newFakeAPI() *fakeAPI {
	of := func(version, kind string) *collection {
		return &collection{kind: metav1.TypeMeta{APIVersion: version, Kind: kind}, grown: make(chan struct{})}
	}
	own := v1alpha1.GroupVersion().String()
	return &fakeAPI{
		nodes: of("v1", "Node"), agents: of(own, v1alpha1.Kind), announcements: of(own, v1alpha1.AnnouncementKind),
		external: of(own, v1alpha1.PeerKind), meshes: of(own, v1alpha1.MeshKind),
	}
}

func (a *fakeAPI) handler() http.Handler {
	own := "/apis/" + v1alpha1.GroupVersion().String() + "/" + v1alpha1.Resource
	m := http.NewServeMux()
	m.HandleFunc("GET /api/v1/nodes", a.listNodes)
	m.HandleFunc("GET /api/v1/nodes/{name}", a.getNode)
	m.HandleFunc("PATCH /api/v1/nodes/{name}", a.patchTaints)
	m.HandleFunc("GET "+own, a.listAgents)
	m.HandleFunc("GET "+own+"/{name}", func(w http.ResponseWriter, r *http.Request) { get(a.agents, w, r) })
	m.HandleFunc("POST "+own, a.create)
	m.HandleFunc("PATCH "+own+"/{name}/status", func(w http.ResponseWriter, r *http.Request) { a.apply(a.agents, w, r) })
	announcements := "/apis/" + v1alpha1.GroupVersion().String() + "/" + v1alpha1.AnnouncementResource
	m.HandleFunc("GET "+announcements, a.announcements.watch)
	m.HandleFunc("PATCH "+announcements+"/{name}", a.announce)
	external := "/apis/" + v1alpha1.GroupVersion().String() + "/" + v1alpha1.PeerResource
	m.HandleFunc("GET "+external, a.external.watch)
	m.HandleFunc("PATCH "+external+"/{name}/status", func(w http.ResponseWriter, r *http.Request) { a.apply(a.external, w, r) })
	m.HandleFunc("GET /apis/"+v1alpha1.GroupVersion().String()+"/"+v1alpha1.MeshResource, a.meshes.watch)
	m.HandleFunc("PATCH "+own+"/{name}", a.patchOwners)
	m.HandleFunc("POST "+eventsPath, a.addEvent)
	m.HandleFunc("GET /openapi/v3/apis/"+v1alpha1.GroupVersion().String(), func(w http.ResponseWriter, r *http.Request) {
		if text := a.published.Load(); text != nil {
			_, _ = w.Write(*text)
		} else {
			http.NotFound(w, r)
		}
	})
	return m
}

// listNodes answers what nodeReader and the watch of the own Node ask for.
func (a *fakeAPI) listNodes(w http.ResponseWriter, r *http.Request) {
	a.nodeReads.Add(1)
	if r.URL.Query().Get("watch") != "" {
		a.nodes.watch(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	list := struct {
		metav1.TypeMeta `json:",inline"`
		Items           []object         `json:"items"`
		Rows            []map[string]any `json:"rows"`
	}{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	table := strings.Contains(r.Header.Get("Accept"), "as=Table")
	for _, o := range a.nodes.all() {
		if table {
			list.Rows = append(list.Rows, map[string]any{"cells": []any{o.Name, "Ready"}})
		} else {
			list.Items = append(list.Items, o)
		}
	}
	_ = json.NewEncoder(w).Encode(list) // the client may be gone
}

func (a *fakeAPI) getNode(w http.ResponseWriter, r *http.Request) {
	a.nodeReads.Add(1)
	get(a.nodes, w, r)
}

// listAgents answers a watch, or what nodeReader asks for.
func (a *fakeAPI) listAgents(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("watch") != "" {
		a.agents.watch(w, r)
		return
	}
	a.nodeReads.Add(1)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"items": a.agents.all()}) // the client may be gone
}

func get(c *collection, w http.ResponseWriter, r *http.Request) {
	if o, exists := c.get(r.PathValue("name")); exists {
		answer(w, o)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusNotFound)
	_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
}

// addNode adds a Node as a kubelet and the controller manager would.
func (a *fakeAPI) addNode(name string, addr netip.Addr, pods netip.Prefix) error {
	n := node{}
	n.Spec.PodCIDRs = []string{pods.String()}
	n.Status.Addresses = []nodeAddress{{Type: internalIP, Address: addr.String()}}
	o := object{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("node " + name)}}
	var err error
	if o.Spec, err = json.Marshal(n.Spec); err != nil {
		return err
	}
	if o.Status, err = json.Marshal(n.Status); err != nil {
		return err
	}
	a.nodes.put(o)
	return nil
}

// announced returns what a node's agent last announced.
func (a *fakeAPI) announced(name string) (s v1alpha1.AnnouncementSpec, err error) {
	if o, ok := a.announcements.get(name); ok && o.Spec != nil {
		err = json.Unmarshal(o.Spec, &s)
	}
	return s, err
}

// status returns the last status that a node's agent published.
func (a *fakeAPI) status(name string) (st v1alpha1.NodeStatus, err error) {
	if o, ok := a.agents.get(name); ok && o.Status != nil {
		err = json.Unmarshal(o.Status, &st)
	}
	return st, err
}

func (a *fakeAPI) create(w http.ResponseWriter, r *http.Request) {
	var o object
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if _, exists := a.agents.get(o.Name); exists {
		http.Error(w, "already exists", http.StatusConflict)
		return
	}
	o.UID, o.Generation = types.UID("agent of "+o.Name), 1
	answer(w, a.agents.put(o))
}

// apply implements server-side apply of the status, for a manager of all fields and others that have written nothing before.
func (a *fakeAPI) apply(c *collection, w http.ResponseWriter, r *http.Request) {
	var applied object
	if err := json.NewDecoder(r.Body).Decode(&applied); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	o, exists := c.get(r.PathValue("name"))
	if !exists {
		http.NotFound(w, r)
		return
	}
	if a.lacks(w, applied.Status) {
		return
	}
	if r.URL.Query().Get("fieldManager") == fieldManager || r.Header.Get("Content-Type") == string(types.MergePatchType) { // that empties it
		o.Status = applied.Status
	} else {
		o.Status = merged(o.Status, applied.Status)
	}
	if r.URL.Query().Has("dryRun") {
		answer(w, o)
		return
	}
	answer(w, c.put(o))
}

// merged returns a status with the fields and conditions that another manager applies.
func merged(status, applied json.RawMessage) json.RawMessage {
	fields, more := map[string]any{}, map[string]any{}
	_ = json.Unmarshal(status, &fields) // there may be none
	_ = json.Unmarshal(applied, &more)  // it was decoded before
	was, _ := fields["conditions"].([]any)
	next, _ := more["conditions"].([]any)
	kind := func(c any) any { return c.(map[string]any)["type"] }
	was = slices.DeleteFunc(was, func(c any) bool {
		return slices.ContainsFunc(next, func(n any) bool { return kind(n) == kind(c) })
	})
	maps.Copy(fields, more)
	fields["conditions"] = append(next, was...)
	status, _ = json.Marshal(fields) // of decoded JSON
	return status
}

// lacks refuses an object with the field that the CRDs lack.
func (a *fakeAPI) lacks(w http.ResponseWriter, part json.RawMessage) bool {
	field := a.undeclared.Load()
	if field == nil || !bytes.Contains(part, []byte(`"`+*field+`":`)) {
		return false
	}
	http.Error(w, "failed to create typed patch object: "+*field+": field not declared in schema", http.StatusInternalServerError)
	return true
}

// announce implements server-side apply of an announcement, and the merge patch that empties it.
func (a *fakeAPI) announce(w http.ResponseWriter, r *http.Request) {
	name, applies := r.PathValue("name"), r.Header.Get("Content-Type") == string(types.ApplyPatchType)
	var patch object
	if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	o, exists := a.announcements.get(name)
	switch {
	case a.refusal.Load() != 0:
		http.Error(w, "refused", int(a.refusal.Load()))
		return
	case name == someoneElse && !a.unprotected.Load():
		http.Error(w, "ValidatingAdmissionPolicy 'ropewalk' denied request", http.StatusForbidden)
		return
	case !exists && !applies:
		http.NotFound(w, r)
		return
	case a.lacks(w, patch.Spec):
		return
	case !exists:
		o = object{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("announcement of " + name)}}
	}
	if o.Spec = patch.Spec; applies {
		o.OwnerReferences = patch.OwnerReferences
	}
	if r.URL.Query().Has("dryRun") {
		answer(w, o)
		return
	}
	answer(w, a.announcements.put(o))
}

func (a *fakeAPI) addEvent(w http.ResponseWriter, r *http.Request) {
	var e apiEvent
	if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	a.events = append(a.events, e)
	a.mu.Unlock()
	answer(w, object{TypeMeta: e.TypeMeta, ObjectMeta: e.ObjectMeta})
}

// patchOwners implements a merge patch of the owners.
func (a *fakeAPI) patchOwners(w http.ResponseWriter, r *http.Request) {
	o, exists := a.agents.get(r.PathValue("name"))
	if !exists {
		http.NotFound(w, r)
		return
	}
	var patch object
	if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	o.OwnerReferences = patch.OwnerReferences
	answer(w, a.agents.put(o))
}

// patchTaints implements a JSON patch that tests the taints, and replaces or removes them.
func (a *fakeAPI) patchTaints(w http.ResponseWriter, r *http.Request) {
	o, exists := a.nodes.get(r.PathValue("name"))
	var patch []struct {
		Op    string
		Path  string
		Value json.RawMessage
	}
	var spec map[string]json.RawMessage
	if err := errors.Join(json.NewDecoder(r.Body).Decode(&patch), json.Unmarshal(o.Spec, &spec)); err != nil || !exists || len(patch) != 2 {
		http.Error(w, fmt.Sprint(err), http.StatusBadRequest)
		return
	}
	if patch[0].Op != "test" || patch[0].Path != "/spec/taints" || patch[1].Path != "/spec/taints" || !bytes.Equal(patch[0].Value, spec["taints"]) {
		http.Error(w, "the taints are others", http.StatusConflict)
		return
	}
	spec["taints"] = patch[1].Value
	if patch[1].Op == "remove" {
		delete(spec, "taints")
	}
	o.Spec, _ = json.Marshal(spec) // of raw messages
	answer(w, a.nodes.put(o))
}

func answer(w http.ResponseWriter, o object) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(o) // the client may be gone
}

// object is any API object.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   json.RawMessage `json:"spec,omitempty"`
	Status json.RawMessage `json:"status,omitempty"`
}

type watchEvent struct {
	Type   string `json:"type"`
	Object object `json:"object"`
}

// collection has all objects of a kind, as a log of events. An object's resource version is its position in the log, from 1.
type collection struct {
	kind metav1.TypeMeta

	mu        sync.Mutex
	past      []watchEvent
	selectors []string      // of watches
	grown     chan struct{} // closed at the next event
}

// put adds or replaces an object.
func (c *collection) put(o object) object {
	_, exists := c.get(o.Name)
	c.mu.Lock()
	defer c.mu.Unlock()
	e := watchEvent{"ADDED", o}
	if exists {
		e.Type = "MODIFIED"
	}
	e.Object.TypeMeta, e.Object.ResourceVersion = c.kind, strconv.Itoa(len(c.past)+1)
	c.past = append(c.past, e)
	close(c.grown)
	c.grown = make(chan struct{})
	return e.Object
}

func (c *collection) get(name string) (object, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range slices.Backward(c.past) {
		if e.Object.Name == name {
			return e.Object, e.Type != "DELETED"
		}
	}
	return object{}, false
}

// remove deletes an object.
func (c *collection) remove(name string) {
	o, exists := c.get(name)
	if !exists {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	o.ResourceVersion = strconv.Itoa(len(c.past) + 1)
	c.past = append(c.past, watchEvent{"DELETED", o})
	close(c.grown)
	c.grown = make(chan struct{})
}

// all returns the objects that exist.
func (c *collection) all() (list []object) {
	events, _ := c.since(0)
	seen := map[string]bool{}
	for _, e := range events {
		if name := e.Object.Name; !seen[name] {
			seen[name] = true
			if o, exists := c.get(name); exists {
				list = append(list, o)
			}
		}
	}
	return list
}

// size returns the length of the log.
func (c *collection) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.past)
}

// since returns the events after a version, and a channel that is closed at the next one.
func (c *collection) since(version int) ([]watchEvent, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.past[min(version, len(c.past)):]), c.grown
}

// watch answers a watch request, with the initial objects on request: client-go lists this way (KEP 3157).
func (c *collection) watch(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	c.mu.Lock()
	c.selectors = append(c.selectors, q.Get("fieldSelector"))
	c.mu.Unlock()
	at, _ := strconv.Atoi(q.Get("resourceVersion"))
	name := strings.TrimPrefix(q.Get("fieldSelector"), "metadata.name=")
	first := q.Get("sendInitialEvents") == "true"
	switch {
	case q.Get("watch") == "":
		http.Error(w, "lists are not implemented", http.StatusNotImplemented)
		return
	case first:
		at = 0
	}
	w.Header().Set("Content-Type", "application/json")
	for {
		events, grown := c.since(at)
		at += len(events)
		events = slices.DeleteFunc(events, func(e watchEvent) bool { return name != "" && e.Object.Name != name })
		if first {
			events, first = append(events, c.bookmark(at)), false
		}
		if !send(w, events) {
			return
		}
		select {
		case <-grown:
		case <-r.Context().Done():
			return
		}
	}
}

// watches returns the selectors of the watches so far.
func (c *collection) watches() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.selectors)
}

// bookmark returns the event that ends the initial objects.
func (c *collection) bookmark(version int) watchEvent {
	return watchEvent{"BOOKMARK", object{TypeMeta: c.kind, ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: strconv.Itoa(version), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}}}
}

func send(w http.ResponseWriter, events []watchEvent) bool {
	out := json.NewEncoder(w)
	for _, e := range events {
		if out.Encode(e) != nil {
			return false
		}
	}
	return http.NewResponseController(w).Flush() == nil
}
