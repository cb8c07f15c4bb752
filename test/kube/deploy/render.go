// SPDX-License-Identifier: Apache-2.0

// Package deploy tests the Kubernetes files in deploy/. It also generates files from the Helm
// chart: the kustomize bases, a manifest for a real API server (test/kube), and
// docs/helm-values.md. `make manifests` writes them.
//
// It is a module of its own, because Helm needs other dependency versions than the API server in test/kube.
package deploy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/releaseutil"
	"sigs.k8s.io/yaml"
)

// Values are a chart's values, as in a values file.
type Values = map[string]any

// Release describes the installation of a chart.
type Release struct {
	Name, Namespace string
	// Chart is the directory's name of the chart.
	Chart string
	// Service is the value of the label app.kubernetes.io/managed-by; empty: Helm.
	Service string
}

// Render does what `helm template` does: it returns the manifests of its chart in the order of installation. Values that violate
// the chart's schema are an error.
func Render(dir string, r Release, values Values) ([]releaseutil.Manifest, error) {
	hooks, manifests, err := renderAll(dir, r, values)
	for _, h := range hooks {
		if err == nil && !slices.Equal(h.Events, []release.HookEvent{release.HookPreDelete}) {
			err = fmt.Errorf("%s is a hook of installation or upgrade, which kubectl and kustomize would not run", h.Path)
		}
	}
	return manifests, err
}

// renderAll is Render with the chart's hooks.
func renderAll(dir string, r Release, values Values) (hooks []*release.Hook, manifests []releaseutil.Manifest, err error) {
	c, err := loader.Load(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("loading the chart %s: %w", dir, err)
	}
	if values, err = clone(values); err != nil {
		return nil, nil, fmt.Errorf("taking values for the chart %s: %w", dir, err)
	}
	options := chartutil.ReleaseOptions{Name: r.Name, Namespace: r.Namespace, Revision: 1, IsInstall: true}
	caps := chartutil.DefaultCapabilities.Copy()
	caps.KubeVersion = chartutil.KubeVersion{Version: "v1.36.3", Major: "1", Minor: "36"}
	all, err := chartutil.ToRenderValues(c, values, options, caps)
	if err != nil {
		return nil, nil, fmt.Errorf("taking values for the chart %s: %w", dir, err)
	}
	if r.Service != "" {
		all["Release"].(map[string]any)["Service"] = r.Service
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, nil, fmt.Errorf("rendering the chart %s: %w", dir, err)
	}
	maps.DeleteFunc(files, func(name, _ string) bool { return strings.HasSuffix(name, "NOTES.txt") })
	hooks, manifests, err = releaseutil.SortManifests(files, caps.APIVersions, releaseutil.InstallOrder)
	if err != nil {
		return nil, nil, fmt.Errorf("sorting what the chart %s renders: %w", dir, err)
	}
	return hooks, manifests, nil
}

// clone copies values: Helm adds defaults to its argument.
func clone(values Values) (Values, error) {
	c := Values{}
	b, err := yaml.Marshal(values)
	if err == nil {
		err = yaml.Unmarshal(b, &c)
	}
	return c, err
}

// stream returns the manifests as one text.
func stream(manifests []releaseutil.Manifest) string {
	var b strings.Builder
	for _, m := range manifests {
		fmt.Fprintf(&b, "---\n%s\n", strings.TrimSpace(m.Content))
	}
	return b.String()
}

// objects parses the manifests.
func objects(text string) ([]map[string]any, error) {
	split := releaseutil.SplitManifests(text)
	var all []map[string]any
	for _, name := range slices.SortedFunc(maps.Keys(split), byNumber) {
		var o map[string]any
		if err := yaml.Unmarshal([]byte(split[name]+"\n"), &o); err != nil {
			return nil, fmt.Errorf("parsing %s: %w", split[name], err)
		}
		if len(o) > 0 {
			all = append(all, o)
		}
	}
	return all, nil
}

// byNumber orders the names of SplitManifests.
func byNumber(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}
