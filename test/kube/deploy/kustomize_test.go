// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// build does what `kustomize build` does.
func build(t *testing.T, fs filesys.FileSystem, dir string) string {
	t.Helper()
	m, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(fs, dir)
	if err != nil {
		t.Fatalf("%s: got error %v, want none", dir, err)
	}
	text, err := m.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// byName returns objects as JSON, by kind and name.
func byName(t *testing.T, text string) map[string]string {
	t.Helper()
	all, err := objects(text)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	for _, o := range all {
		if labels, ok := at(t, o, "metadata", "labels").(map[string]any); ok {
			delete(labels, "app.kubernetes.io/managed-by")
		}
		if pod := at(t, o, "spec", "template"); o["kind"] == "DaemonSet" {
			delete(at(t, pod, "metadata", "labels").(map[string]any), "app.kubernetes.io/managed-by")
		}
		if o["kind"] == "ConfigMap" { // deploy/grafana has the dashboard with labels of its own
			o = map[string]any{"kind": o["kind"], "metadata": o["metadata"], "data": o["data"]}
			delete(at(t, o, "metadata").(map[string]any), "labels")
		}
		b, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		m[fmt.Sprint(o["kind"], " ", at(t, o, "metadata", "name"))] = string(b)
	}
	return m
}

func TestKustomizeBuildsCRDs(t *testing.T) {
	all, err := objects(build(t, filesys.MakeFsOnDisk(), filepath.Join(root, "deploy", "crd")))
	if err != nil || len(all) != 4 {
		t.Fatalf("%d objects, %v", len(all), err)
	}
	for _, o := range all {
		if o["kind"] != "CustomResourceDefinition" {
			t.Errorf("a %v", o["kind"])
		}
	}
}

func TestKustomizeMatchesChart(t *testing.T) {
	on := Values{"enabled": true}
	metrics := Values{"enabled": true, "podMonitor": on, "rules": on, "dashboard": on}
	for _, c := range []struct {
		base       string
		monitoring bool
		chart      Release
		values     Values
	}{
		{"spread", false, spread(), Values{}},
		{"mesh", false, mesh(), Values{}},
		{"cleanup-spread", false, spread(), Values{"cleanup": on}},
		{"cleanup-mesh", false, mesh(), Values{"cleanup": on}},
		{"spread", true, spread(), Values{"metrics": metrics}},
		{"mesh", true, mesh(), Values{"metrics": metrics}},
	} {
		got := byName(t, kustomized(t, c.base, c.monitoring))
		want := byName(t, render(t, c.chart, c.values))
		delete(got, "Namespace "+namespace)
		if !maps.Equal(got, want) {
			for name := range want {
				if got[name] != want[name] {
					t.Errorf("%s, monitoring %v: %s:\n%s\nthe chart has:\n%s", c.base, c.monitoring, name, got[name], want[name])
				}
			}
			t.Errorf("%s, monitoring %v: %d objects, the chart has %d", c.base, c.monitoring, len(got), len(want))
		}
	}
}

// TestPolicyComesBeforeTheAgents is about kubectl and kustomize. Helm has an order of its own, which ends with unknown kinds
// (docs/kubernetes/install.md).
func TestPolicyComesBeforeTheAgents(t *testing.T) {
	for _, base := range []string{"spread", "mesh", "cleanup-spread", "cleanup-mesh"} {
		text := kustomized(t, base, false)
		last := strings.LastIndex(text, "kind: ValidatingAdmissionPolicyBinding")
		if agents := strings.Index(text, "kind: DaemonSet"); last < 0 || agents < last {
			t.Errorf("%s: the policy is at %d, the agents at %d", base, last, agents)
		}
		if rights := strings.Index(text, "kind: ClusterRoleBinding"); rights < last {
			t.Errorf("%s: the policy is at %d, the agents' rights at %d", base, last, rights)
		}
	}
}

// kustomized builds one of the bases, with its component or without.
func kustomized(t *testing.T, base string, monitoring bool) string {
	t.Helper()
	dir := filepath.Join(root, "deploy", "kustomize")
	if !monitoring {
		return build(t, filesys.MakeFsOnDisk(), filepath.Join(dir, base))
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	over := t.TempDir()
	relative, err := filepath.Rel(over, abs)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("resources: [%s/%s]\ncomponents: [%s/monitoring-%s]\n", relative, base, relative, base)
	fs := filesys.MakeFsOnDisk()
	if err := fs.WriteFile(filepath.Join(over, "kustomization.yaml"), []byte(text)); err != nil {
		t.Fatal(err)
	}
	return build(t, fs, over)
}
