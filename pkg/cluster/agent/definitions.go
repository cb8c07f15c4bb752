// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ropewalk/ropewalk/pkg/cluster/announce"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// errOutdatedCRD means that the agent cannot publish all that it would do. Other nodes would not know of it, so that it does nothing.
var errOutdatedCRD = errors.New("the cluster's CRDs are older than the agent, which changes nothing on the node until they are updated (kubectl apply --server-side -k deploy/crd)")

// reasonOutdatedCRD is the reason of the Ready condition then.
const reasonOutdatedCRD = "OutdatedCRD"

// definitions has the agent's knowledge of the CRDs.
type definitions struct {
	outdated error         // of the last check; nil: there was none, or the CRDs are not outdated
	due      time.Time     // of the next check
	pause    time.Duration // the last one while they are outdated
}

// definitionRetryMin and definitionRetryMax bound the pauses between checks of outdated CRDs: each agent of a cluster makes two requests.
const definitionRetryMin, definitionRetryMax = 15 * time.Second, 5 * time.Minute

// isFieldUndeclared reports whether the API server rejected an apply because the CRD lacks one of its fields.
func isFieldUndeclared(err error) bool {
	return err != nil && strings.Contains(err.Error(), "field not declared in schema")
}

// checkDefinitions returns errOutdatedCRD if the API server would refuse a field, has no
// announcements, or drops a field of the RopewalkMesh or of RopewalkPeers. It asks by dry runs of
// full objects, and for the schemas of the objects that no agent may write. Once answered, it asks
// again each hour, since no write of an agent shows that those schemas were downgraded. An error
// that says nothing of the CRDs is none here: a write fails by it as well.
func (a *Agent) checkDefinitions(ctx context.Context, n *node) error {
	d := &a.definitions
	if time.Now().Before(d.due) {
		return d.outdated
	}
	c := a.client.dryRun()
	announced := c.announce(ctx, n, announce.Full())
	status := c.apply(ctx, n.Name, fullStatus())
	switch {
	case apierrors.IsNotFound(announced) || isFieldUndeclared(announced):
		return d.wait(announced)
	case isFieldUndeclared(status):
		return d.wait(status)
	}
	var lacks string
	var read error
	if a.cluster.mesh != nil {
		lacks, read = c.undeclaredInIntent(ctx)
	}
	if lacks != "" {
		return d.wait(fmt.Errorf("the CRD of the %s, so that the API server drops its value", lacks))
	}
	*d = definitions{}
	if announced == nil && status == nil && (read == nil || apierrors.IsNotFound(read) || apierrors.IsForbidden(read)) {
		d.due = time.Now().Add(wait.Jitter(checkPeriod, 0.2))
	}
	return nil
}

// openSchema is the part of an OpenAPI schema that has fields.
type openSchema struct {
	Properties map[string]*openSchema `json:"properties"`
	Items      *openSchema            `json:"items"`
}

// intentSpecs are the specs that administrators write, by kind.
var intentSpecs = map[string]reflect.Type{v1alpha1.MeshKind: reflect.TypeFor[v1alpha1.MeshSpec](), v1alpha1.PeerKind: reflect.TypeFor[v1alpha1.PeerSpec]()}

// undeclaredInIntent names a field of an administrator's spec that the API server does not know; "": none, or it publishes no schema of the object.
func (c *client) undeclaredInIntent(ctx context.Context) (field string, err error) {
	ctx, cancel := context.WithTimeout(ctx, apiWriteTimeout)
	defer cancel()
	body, err := c.own.Get().AbsPath("/openapi/v3/apis/"+v1alpha1.GroupVersion().String()).SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx).Raw()
	var published struct {
		Components struct {
			Schemas map[string]*openSchema `json:"schemas"`
		} `json:"components"`
	}
	if err == nil {
		err = json.Unmarshal(body, &published)
	}
	if err != nil {
		return "", err
	}
	for name, s := range published.Components.Schemas {
		kind := name[strings.LastIndex(name, ".")+1:]
		if spec := intentSpecs[kind]; spec != nil && s != nil && s.Properties["spec"] != nil {
			if path := s.Properties["spec"].lacks(spec, "spec"); path != "" {
				return kind + " lacks " + path, nil
			}
		}
	}
	return "", nil
}

// lacks returns the path of a field of a type that a schema does not have; "": it has all.
func (s *openSchema) lacks(t reflect.Type, path string) string {
	switch {
	case s == nil:
		return path
	case t.Kind() == reflect.Pointer:
		return s.lacks(t.Elem(), path)
	case t.Kind() == reflect.Slice:
		return s.Items.lacks(t.Elem(), path)
	case t.Kind() != reflect.Struct:
		return ""
	}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if missing := s.Properties[name].lacks(t.Field(i).Type, path+"."+name); missing != "" {
			return missing
		}
	}
	return ""
}

// wait returns that the CRDs are outdated, until the next check. The agent's retries come more often.
func (d *definitions) wait(err error) error {
	d.outdated = fmt.Errorf("%w: %w", errOutdatedCRD, err)
	d.pause = min(max(2*d.pause, definitionRetryMin), definitionRetryMax)
	d.due = time.Now().Add(wait.Jitter(d.pause, 0.2))
	return d.outdated
}

// fullStatus returns a status with all fields.
func fullStatus() v1alpha1.NodeStatus {
	now := metav1.Now()
	return v1alpha1.NodeStatus{
		ObservedGeneration: 1, KeyGeneration: 1, Peers: 1, SpreadsTo: 1, StalePeers: &v1alpha1.StalePeers{Count: 1, Nodes: []string{"check"}},
		StrictSince: &now, MeshGeneration: 1, MeshUID: "check", Writer: "check", AgentVersion: "check", KernelVersion: "check",
		Conditions: []metav1.Condition{{
			Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, ObservedGeneration: 1, LastTransitionTime: now, Reason: reasonOutdatedCRD, Message: "check",
		}},
	}
}

// publishOutdated writes that the CRDs are outdated. All else stays as an agent of their version has published it, and its other conditions are no
// longer exported: nothing observes them.
func (a *Agent) publishOutdated(ctx context.Context, rn *v1alpha1.RopewalkNode, outdated error) error {
	c := readyCondition(rn, nil, outdated)
	c.Reason = reasonOutdatedCRD
	a.stats.conditions.Store(&[]metav1.Condition{c})
	current := a.lastWrite.current(rn, rn.Status)
	st := *current.DeepCopy()
	meta.SetStatusCondition(&st.Conditions, c)
	if sameStatus(current, st) {
		return nil
	}
	if err := a.client.as(outdatedManager).apply(ctx, a.cfg.Node, v1alpha1.NodeStatus{Conditions: []metav1.Condition{c}}); err != nil {
		return err
	}
	a.lastWrite.wrote(rn, st)
	a.reportChange(ctx, rn, current.Conditions, st.Conditions, nil)
	return nil
}
