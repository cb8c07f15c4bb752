// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// intent is a parsed RopewalkMesh, by which administrators configure mode mesh.
type intent struct {
	revision       meshRevision
	cleartext      v1alpha1.Cleartext // empty: Never
	pods, services []netip.Prefix     // as in mesh.TunnelConfig
	nodes          nodeEncryptionIntent
	postQuantum    config.PostQuantum
	names          []string        // of excluded nodes
	excluded       labels.Selector // nil: none
	pools          []pool
}

// pool has the settings of the nodes that it selects.
type pool struct {
	nodes    labels.Selector
	settings mesh.Settings
}

// savedMesh is the RopewalkMesh that an agent read last. It is persisted.
type savedMesh struct {
	UID        types.UID         `json:"uid"`
	Generation int64             `json:"generation"`
	Spec       v1alpha1.MeshSpec `json:"spec"`
}

// errNoMesh means that the agent has never read a RopewalkMesh.
var errNoMesh = errors.New("the cluster has no RopewalkMesh " + v1alpha1.MeshName + ", so this node has no tunnel until there is one")

// readIntent follows the RopewalkMesh, and saves it for a start without the API. While there is
// none, or none that this agent can apply, the last one stays in effect: note says so.
func (a *Agent) readIntent(n *node) (note string, err error) {
	if a.cluster.mesh == nil {
		return "", nil // another mode
	}
	var rm *v1alpha1.RopewalkMesh
	if o, ok, _ := a.cluster.mesh.GetStore().GetByKey(v1alpha1.MeshName); ok {
		rm, _ = o.(*v1alpha1.RopewalkMesh)
	}
	switch last := a.persisted.Mesh; {
	case rm == nil && a.intent == nil:
		return "", errNoMesh
	case rm == nil:
		return fmt.Sprintf("the cluster has no RopewalkMesh %s: generation %d stays in effect", v1alpha1.MeshName, last.Generation), nil
	case a.intent != nil && last != nil && last.UID == rm.UID && last.Generation == rm.Generation && a.persisted.Node == n.UID:
		return "", nil
	}
	parsed, err := parseIntent(&rm.Spec)
	if err != nil && a.intent != nil {
		return fmt.Sprintf("generation %d of the RopewalkMesh is ignored, and the one before stays in effect: %v", rm.Generation, err), nil
	}
	if err != nil {
		return "", fmt.Errorf("applying generation %d of the RopewalkMesh: %w", rm.Generation, err)
	}
	parsed.revision = meshRevision{rm.UID, rm.Generation}
	a.intent = parsed
	next := a.persisted
	if next.Node != n.UID {
		next = persistedState{Node: n.UID, Name: n.Name, Mode: a.cfg.Mode}
	}
	next.Mesh = &savedMesh{rm.UID, rm.Generation, rm.Spec}
	a.savePersisted(next)
	return "", nil
}

// parseIntent parses a RopewalkMesh. The API server has validated it, but maybe with another version of the CRD.
func parseIntent(spec *v1alpha1.MeshSpec) (*intent, error) {
	i := &intent{cleartext: cmp.Or(spec.Cleartext, v1alpha1.CleartextAuto), names: spec.Exclude.NodeNames}
	if !slices.Contains([]v1alpha1.Cleartext{v1alpha1.CleartextNever, v1alpha1.CleartextAuto, v1alpha1.CleartextAlways}, i.cleartext) {
		return nil, fmt.Errorf("spec.cleartext is %.20q: want Always, Auto or Never", i.cleartext)
	}
	var errs [7]error
	i.postQuantum, errs[6] = parsePostQuantum(spec.PostQuantum)
	i.pods, errs[0] = parseCIDRs("podCIDRs", spec.PodCIDRs)
	i.services, errs[1] = parseCIDRs("serviceCIDRs", spec.ServiceCIDRs)
	i.nodes, errs[2] = parseNodeEncryption(&spec.NodeEncryption)
	if s := spec.Exclude.NodeSelector; s != nil {
		i.excluded, errs[3] = parseExcluded(s)
	}
	for j := range spec.Pools {
		p, err := parsePool(&spec.Pools[j])
		if err != nil {
			errs[4] = fmt.Errorf("spec.pools[%d]: %w", j, err)
		}
		i.pools = append(i.pools, p)
	}
	if len(i.pods) == 0 && (i.cleartext == v1alpha1.CleartextNever || i.nodes.enabled) {
		errs[5] = errors.New("spec.cleartext Never and spec.nodeEncryption need podCIDRs")
	}
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	return i, nil
}

// parseExcluded parses the selector of excluded nodes. It accepts no labels that a kubelet can set, since a node must not exclude itself.
func parseExcluded(s *v1alpha1.NodeSelector) (labels.Selector, error) {
	keys := slices.Collect(maps.Keys(s.MatchLabels))
	for _, e := range s.MatchExpressions {
		keys = append(keys, e.Key)
	}
	for _, key := range keys {
		if !strings.HasPrefix(key, v1alpha1.RestrictedPrefix) {
			return nil, fmt.Errorf("spec.exclude.nodeSelector has the label %.80q: want keys that begin with %s", key, v1alpha1.RestrictedPrefix)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("spec.exclude.nodeSelector is empty, and would exclude all nodes")
	}
	selector, err := s.Selector()
	if err != nil {
		return nil, fmt.Errorf("spec.exclude.nodeSelector: %w", err)
	}
	return selector, nil
}

func parsePool(spec *v1alpha1.Pool) (p pool, err error) {
	for _, f := range []struct {
		name       string
		value, low int32
	}{
		{"port", spec.Port, 0},
		{"mtu", cmp.Or(spec.MTU, mesh.MinMTU), mesh.MinMTU},
		{"persistentKeepalive", spec.PersistentKeepalive, 0},
	} {
		if f.value < f.low || f.value > 65535 {
			return p, fmt.Errorf("%s is %d: want %d to 65535", f.name, f.value, f.low)
		}
	}
	underlay, err := config.ParseUnderlayMode(string(cmp.Or(spec.Underlay, "auto")))
	if err != nil {
		return p, fmt.Errorf("underlay: %w", err)
	}
	p.settings = mesh.Settings{Port: uint16(spec.Port), MTU: int(spec.MTU), Keepalive: uint16(spec.PersistentKeepalive), Underlay: underlay}
	if p.nodes, err = spec.NodeSelector.Selector(); err != nil {
		return p, fmt.Errorf("nodeSelector: %w", err)
	}
	return p, nil
}

// excludes reports whether a node takes no part.
func (i *intent) excludes(n *node) bool {
	return i != nil && (slices.Contains(i.names, n.Name) || i.excluded != nil && i.excluded.Matches(labels.Set(n.Labels)))
}

// settings returns the settings of the first pool that selects a node, or none.
func (i *intent) settings(n *node) mesh.Settings {
	if i != nil {
		for _, p := range i.pools {
			if p.nodes.Matches(labels.Set(n.Labels)) {
				return p.settings
			}
		}
	}
	return mesh.Settings{}
}
