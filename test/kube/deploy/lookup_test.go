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
	resource := map[string]string{"Namespace": "namespaces", "BlockAffinity": "blockaffinities"}[kind]
	return c.Resource(version.WithResource(resource)), false, err
}

func newFakeCluster(objects ...string) fakeCluster {
	var all []runtime.Object
	for _, o := range objects {
		apiVersion, kind, _ := strings.Cut(o, " ")
		u := &unstructured.Unstructured{}
		u.SetAPIVersion(apiVersion)
		u.SetKind(kind)
		u.SetName("kube-system")
		all = append(all, u)
	}
	kinds := map[schema.GroupVersionResource]string{
		{Version: "v1", Resource: "namespaces"}:                                      "NamespaceList",
		{Group: "crd.projectcalico.org", Version: "v1", Resource: "blockaffinities"}: "BlockAffinityList",
	}
	return fakeCluster{fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, all...)}
}

// TestCalicoIsSourceOnlyWithBlocks: Canal, and Calico with IPAM host-local, have the definition and no blocks.
func TestCalicoIsSourceOnlyWithBlocks(t *testing.T) {
	const namespaceObject, affinity = "v1 Namespace", "crd.projectcalico.org/v1 BlockAffinity"
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
		chart, err := loader.Load(chartPath(agentChart))
		if err != nil {
			t.Fatal(err)
		}
		caps := chartutil.DefaultCapabilities.Copy()
		caps.KubeVersion, caps.APIVersions = chartutil.KubeVersion{Version: "v1.36.3", Major: "1", Minor: "36"}, append(caps.APIVersions, c.apis...)
		values, err := chartutil.ToRenderValues(chart, withImage(Values{"mode": "mesh"}), chartutil.ReleaseOptions{Name: "r", Namespace: namespace}, caps)
		if err != nil {
			t.Fatal(err)
		}
		files, err := engine.RenderWithClientProvider(chart, values, c.cluster)
		if err != nil {
			t.Fatal(c.what, err)
		}
		text := fmt.Sprint(files)
		if strings.Contains(text, "--pod-cidr-source=calico") != c.calico || strings.Contains(text, "blockaffinities") != c.calico {
			t.Errorf("%s: calico is not %v", c.what, c.calico)
		}
	}
}
