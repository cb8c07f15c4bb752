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
		text, err := upgrade(t, c.cluster, Values{}, c.apis...)
		if err != nil {
			t.Fatal(c.what, err)
		}
		if strings.Contains(text, "--pod-cidr-source=calico") != c.calico || strings.Contains(text, "blockaffinities") != c.calico {
			t.Errorf("%s: calico is not %v", c.what, c.calico)
		}
	}
}

// upgrade renders the chart of mesh as `helm upgrade` does, with the lookups of a cluster that has further APIs.
func upgrade(t *testing.T, cluster fakeCluster, values Values, apis ...string) (string, error) {
	t.Helper()
	chart, err := loader.Load(chartPath(meshChart))
	if err != nil {
		t.Fatal(err)
	}
	caps := chartutil.DefaultCapabilities.Copy()
	caps.KubeVersion, caps.APIVersions = chartutil.KubeVersion{Version: "v1.36.3", Major: "1", Minor: "36"}, append(caps.APIVersions, apis...)
	r := mesh()
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
	all, err := objects(render(t, mesh(), values))
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

// TestUpgradeRefusesToRenameTunnel: the former one would stay on the nodes.
func TestUpgradeRefusesToRenameTunnel(t *testing.T) {
	on, off := Values{"enabled": true}, Values{"enabled": false}
	plain, cleanup, renamed := Values{}, Values{"cleanup": on}, Values{"tunnel": "wg7"}
	for _, c := range []struct {
		what       string
		have, next Values
		available  int64
		want       string // in the error; empty: none
	}{
		{"the same", plain, plain, 3, ""},
		{"a cleanup", plain, cleanup, 3, ""},
		{"engines of the hosts", plain, Values{"engine": off}, 3, ""},
		{"a renamed tunnel", plain, renamed, 3, "the tunnel cannot be renamed"},
		{"a renamed tunnel of hosts' engines", Values{"engine": off}, Values{"engine": off, "tunnel": "wg7"}, 3, "the tunnel cannot be renamed"},
		{"a tunnel renamed by the cleanup", plain, Values{"cleanup": on, "tunnel": "wg7"}, 3, "the tunnel cannot be renamed"},
		{"a tunnel renamed during a cleanup", cleanup, renamed, 2, "the tunnel cannot be renamed"},
		{"a tunnel renamed after a cleanup", cleanup, renamed, 3, ""},
	} {
		_, err := upgrade(t, installed(t, c.have, c.available), c.next)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", c.what, err, c.want)
		}
	}
}
