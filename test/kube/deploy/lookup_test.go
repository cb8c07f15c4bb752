// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
)

// fakeCluster answers the chart's lookups.
type fakeCluster struct{ dynamic.Interface }

// GetClientFor implements engine.ClientProvider.
func (c fakeCluster) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	version, err := schema.ParseGroupVersion(apiVersion)
	resource := map[string]string{"Namespace": "namespaces", "BlockAffinity": "blockaffinities", "DaemonSet": "daemonsets"}[kind]
	return c.Resource(version.WithResource(resource)), kind == "DaemonSet", err
}

// named returns an object of the name kube-system.
func named(apiVersionAndKind string) runtime.Object {
	apiVersion, kind, _ := strings.Cut(apiVersionAndKind, " ")
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	u.SetName("kube-system")
	return u
}

func newFakeCluster(all ...runtime.Object) fakeCluster {
	kinds := map[schema.GroupVersionResource]string{
		{Version: "v1", Resource: "namespaces"}:                                      "NamespaceList",
		{Group: "apps", Version: "v1", Resource: "daemonsets"}:                       "DaemonSetList",
		{Group: "crd.projectcalico.org", Version: "v1", Resource: "blockaffinities"}: "BlockAffinityList",
	}
	return fakeCluster{fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, all...)}
}

// TestCalicoIsSourceOnlyWithBlocks: Canal, and Calico with IPAM host-local, have the definition and no blocks.
func TestCalicoIsSourceOnlyWithBlocks(t *testing.T) {
	namespaceObject, affinity := named("v1 Namespace"), named("crd.projectcalico.org/v1 BlockAffinity")
	for _, c := range []struct {
		what    string
		cluster fakeCluster
		apis    []string
		calico  bool
	}{
		{"helm template", newFakeCluster(), []string{"crd.projectcalico.org/v1/BlockAffinity"}, true},
		{"Calico's IPAM", newFakeCluster(namespaceObject, affinity), []string{"crd.projectcalico.org/v1/BlockAffinity"}, true},
		{"Canal", newFakeCluster(namespaceObject), []string{"crd.projectcalico.org/v1/BlockAffinity"}, false},
		{"no Calico", newFakeCluster(namespaceObject), nil, false},
	} {
		text, err := upgrade(t, c.cluster, Values{"mode": "mesh"}, c.apis...)
		if err != nil {
			t.Fatal(c.what, err)
		}
		if strings.Contains(text, "--pod-cidr-source=calico") != c.calico || strings.Contains(text, "blockaffinities") != c.calico {
			t.Errorf("%s: calico is not %v", c.what, c.calico)
		}
	}
}

// upgrade renders the agent's chart as `helm upgrade` does, with the lookups of a cluster that has further APIs.
func upgrade(t *testing.T, cluster fakeCluster, values Values, apis ...string) (string, error) {
	t.Helper()
	chart, err := loader.Load(chartPath(agentChart))
	if err != nil {
		t.Fatal(err)
	}
	caps := chartutil.DefaultCapabilities.Copy()
	caps.KubeVersion, caps.APIVersions = chartutil.KubeVersion{Version: "v1.36.3", Major: "1", Minor: "36"}, append(caps.APIVersions, apis...)
	r := here()
	all, err := chartutil.ToRenderValues(chart, withImage(values), chartutil.ReleaseOptions{Name: r.Name, Namespace: r.Namespace, IsUpgrade: true}, caps)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.RenderWithClientProvider(chart, all, cluster)
	return fmt.Sprint(files), err
}

// installed returns the DaemonSets of a release with these values, whose pods run on three nodes. Of the agents' pods, some are available.
func installed(t *testing.T, values Values, available int64) fakeCluster {
	t.Helper()
	all, err := objects(render(t, here(), values))
	if err != nil {
		t.Fatal(err)
	}
	var sets []runtime.Object
	for _, o := range all {
		if o["kind"] == "DaemonSet" {
			o["status"] = map[string]any{"observedGeneration": int64(0), "desiredNumberScheduled": int64(3), "updatedNumberScheduled": int64(3), "numberAvailable": available}
			sets = append(sets, &unstructured.Unstructured{Object: o})
		}
	}
	return newFakeCluster(sets...)
}

// TestUpgradeRefusesToEndTunnels: without its engine, a node in mode mesh drops packets until its agent is replaced.
func TestUpgradeRefusesToEndTunnels(t *testing.T) {
	on, off := Values{"enabled": true}, Values{"enabled": false}
	mesh, spread, cleanup := Values{"mode": "mesh"}, Values{}, Values{"mode": "mesh", "cleanup": on}
	for _, c := range []struct {
		what       string
		have, next Values
		available  int64
		want       string // in the error; empty: none
	}{
		{"mesh to spread", mesh, spread, 3, "cleanup.enabled=true"},
		{"mesh to a cleanup of spread", mesh, Values{"cleanup": on}, 3, "cleanup.enabled=true"},
		{"a running cleanup to spread", cleanup, spread, 2, "rollout status daemonset/ropewalk-agent"},
		{"a completed cleanup to spread", cleanup, spread, 3, ""},
		{"mesh to spread, allowed", mesh, Values{"mesh": Values{"leave": true}}, 3, ""},
		{"mesh to its cleanup", mesh, cleanup, 3, ""},
		{"mesh to mesh", mesh, mesh, 3, ""},
		{"mesh to engines of the hosts", mesh, Values{"mode": "mesh", "engine": off}, 3, ""},
		{"spread to mesh", spread, mesh, 3, ""},
		{"a renamed tunnel", mesh, Values{"mode": "mesh", "mesh": Values{"tunnel": "wg7"}}, 3, "mesh.tunnel cannot be renamed"},
		{"a renamed tunnel of hosts' engines", Values{"mode": "mesh", "engine": off}, Values{"mode": "mesh", "engine": off, "mesh": Values{"tunnel": "wg7"}}, 3, "mesh.tunnel"},
		{"a tunnel renamed by the cleanup", mesh, Values{"mode": "mesh", "cleanup": on, "mesh": Values{"tunnel": "wg7"}}, 3, "mesh.tunnel"},
		{"a tunnel renamed after a cleanup", cleanup, Values{"mode": "mesh", "mesh": Values{"tunnel": "wg7"}}, 3, ""},
	} {
		_, err := upgrade(t, installed(t, c.have, c.available), c.next)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", c.what, err, c.want)
		}
	}
}
