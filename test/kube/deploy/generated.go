// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/releaseutil"
)

const (
	spreadChart = "ropewalk-spread"
	meshChart   = "ropewalk-mesh"
	crdsChart   = "ropewalk-crds"
	namespace   = "ropewalk-system"
)

// generated is a file that is generated from a chart.
type generated struct {
	path   string // relative to the repository
	chart  string
	values Values
	// namespace adds the namespace's manifest.
	namespace bool
	// only are the kinds to include; none: all.
	only []string
}

// everything returns values that enable all features, for the API server to validate. It leaves out the dashboard, to save 40
// kB.
func everything() Values {
	on := Values{"enabled": true}
	return Values{
		"engine": Values{"lanes": 2, "workers": 0}, "podCIDRSource": "cilium", "startupTaint": true, "spreadPorts": "50000-50999", "imagePullSecrets": []any{Values{"name": "pull"}},
		"apiServer": Values{"host": "192.0.2.254", "port": 6443},
		"mesh": Values{
			"podCIDRs": []any{"10.244.0.0/16", "2001:db8::/48"}, "serviceCIDRs": []any{"10.96.0.0/12"}, "cleartext": "Always", "postQuantum": "Auto",
			"nodeEncryption": Values{
				"enabled": true, "nodeCIDRs": []any{"192.0.2.0/24"}, "clearPorts": []any{"192.0.2.10:8443", "[2001:db8::/64]:53"},
				"clearNodes": Values{"matchLabels": Values{"example.org/clear": "yes"}},
			},
			"exclude": Values{"nodeNames": []any{"node-9"}, "nodeSelector": Values{"matchLabels": Values{"node-restriction.kubernetes.io/mesh": "no"}}},
			"pools":   []any{Values{"nodeSelector": Values{"matchLabels": Values{"pool": "storage"}}, "mtu": 8900}, Values{"port": 51821, "underlay": "udp", "persistentKeepalive": 25}},
		},
		"metrics": Values{
			"enabled": true, "podMonitor": on, "rules": on,
			"networkPolicy": Values{"enabled": true, "from": []any{Values{"namespaceSelector": Values{"matchLabels": Values{"name": "monitoring"}}}}},
		},
		"podAnnotations": Values{"a": "b"}, "podLabels": Values{"c": "d"}, "extraArgs": []any{"--learn=5s"},
		"extraEnv": []any{Values{"name": "GODEBUG", "value": "madvdontneed=1"}}, "updateStrategy": "OnDelete",
	}
}

// withImage returns values with the image's name, which the chart requires.
func withImage(values Values) Values {
	all := Values{"image": Values{"repository": "ropewalk-agent"}}
	maps.Copy(all, values)
	return all
}

// files returns all files that are generated from the charts.
func files() []generated {
	on := Values{"enabled": true}
	metrics := Values{"enabled": true, "podMonitor": on, "rules": on}
	return []generated{
		{path: "deploy/kustomize/spread/agent.yaml", chart: spreadChart, values: Values{}, namespace: true},
		{path: "deploy/kustomize/mesh/agent.yaml", chart: meshChart, values: Values{}, namespace: true},
		{path: "deploy/kustomize/cleanup-spread/agent.yaml", chart: spreadChart, values: Values{"cleanup": on}, namespace: true},
		{path: "deploy/kustomize/cleanup-mesh/agent.yaml", chart: meshChart, values: Values{"cleanup": on}, namespace: true},
		{path: "deploy/kustomize/monitoring-spread/monitoring.yaml", chart: spreadChart, values: Values{"metrics": metrics}, only: monitoring},
		{path: "deploy/kustomize/monitoring-mesh/monitoring.yaml", chart: meshChart, values: Values{"metrics": metrics}, only: monitoring},
		{path: "test/kube/testdata/everything.yaml", chart: meshChart, values: everything()},
	}
}

// monitoring are the kinds of objects for the Prometheus operator.
var monitoring = []string{"PodMonitor", "PrometheusRule"}

const generatedHeader = "# SPDX-License-Identifier: Apache-2.0\n# Generated from the charts in deploy/helm by `make manifests`. Do not edit.\n"

// namespaceManifest is the namespace for the agents: pods with host network are admitted only at this level.
const namespaceManifest = `---
apiVersion: v1
kind: Namespace
metadata:
  name: ` + namespace + `
  labels:
    pod-security.kubernetes.io/enforce: privileged
    pod-security.kubernetes.io/warn: privileged
`

// text returns the content that is generated from a chart's directory.
func (g generated) text(dir string) (string, error) {
	manifests, err := Render(dir, Release{Name: g.chart, Namespace: namespace, Service: "kustomize"}, withImage(g.values))
	if err != nil {
		return "", err
	}
	text := generatedHeader
	if g.namespace {
		text += namespaceManifest
	}
	// Helm's order ends with unknown kinds, but the policy must exist before the agents.
	slices.SortStableFunc(manifests, func(a, b releaseutil.Manifest) int { return cmp.Compare(rank(a), rank(b)) })
	for _, manifest := range manifests {
		if len(g.only) == 0 || slices.Contains(g.only, manifest.Head.Kind) {
			text += fmt.Sprintf("---\n%s\n", withoutSource(manifest.Content))
		}
	}
	return text, nil
}

func rank(m releaseutil.Manifest) int {
	if strings.HasPrefix(m.Head.Kind, "ValidatingAdmissionPolicy") {
		return 0
	}
	return 1
}

// withoutSource drops Helm's comment with the template's name.
func withoutSource(content string) string {
	content = strings.TrimSpace(content)
	if first, rest, ok := strings.Cut(content, "\n"); ok && strings.HasPrefix(first, "# Source: ") {
		return rest
	}
	return content
}

// check compares a file of the repository with its generated content, or writes it.
func check(root, path, text string, write bool) error {
	file := filepath.Join(root, path)
	if write {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		return os.WriteFile(file, []byte(text), 0o644)
	}
	present, err := os.ReadFile(file)
	if err == nil && string(present) != text {
		err = fmt.Errorf("%s is not up to date: run make manifests", path)
	}
	return err
}
