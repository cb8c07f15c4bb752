// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/releaseutil"
)

const (
	agentChart = "helm/ropewalk-agent"
	crdsChart  = "helm/ropewalk-crds"
	namespace  = "ropewalk-system"
)

// made is a file that is made of the chart.
type made struct {
	path   string // in the repository
	values Values
	// namespace says that the file brings its namespace along.
	namespace bool
	// only are the kinds to take; none: all.
	only []string
}

// everything are values that turn everything on but the dashboard, whose 40 kB nobody needs twice, so that an API server
// judges all of it.
func everything() Values {
	on := Values{"enabled": true}
	return Values{
		"mode": "mesh", "modeOverride": true, "port": 51821, "spreadPorts": "50000-50999", "imagePullSecrets": []any{Values{"name": "pull"}},
		"spread": Values{"mark": 4294901760}, "apiServer": Values{"host": "192.0.2.254", "port": 6443},
		"mesh": Values{"mtu": 1380, "podCIDRs": []any{"10.244.0.0/16", "2001:db8::/48"}, "cleartext": true},
		"metrics": Values{
			"enabled": true, "podMonitor": on, "rules": on,
			"networkPolicy": Values{"enabled": true, "from": []any{Values{"namespaceSelector": Values{"matchLabels": Values{"name": "monitoring"}}}}},
		},
		"podAnnotations": Values{"a": "b"}, "podLabels": Values{"c": "d"}, "extraArgs": []any{"--learn=5s"},
	}
}

// files are all that is made of the chart for an agent.
func files() []made {
	on := Values{"enabled": true}
	metrics := Values{"enabled": true, "podMonitor": on, "rules": on}
	return []made{
		{path: "deploy/kustomize/base/agent.yaml", values: Values{}, namespace: true},
		{path: "deploy/kustomize/mesh/agent.yaml", values: Values{"mode": "mesh"}, namespace: true},
		{path: "deploy/kustomize/cleanup/agent.yaml", values: Values{"cleanup": on}, namespace: true},
		{
			path: "deploy/kustomize/monitoring/monitoring.yaml", values: Values{"metrics": metrics},
			only: []string{"PodMonitor", "PrometheusRule"},
		},
		{path: "test/kube/testdata/everything.yaml", values: everything()},
	}
}

// copies are what a chart holds of files that stand elsewhere: Helm packs nothing from outside a chart, and not every
// way in which a tree travels keeps symbolic links.
func copies() map[string]string {
	return map[string]string{
		"deploy/helm/ropewalk-agent/files/dashboard.json":                "deploy/grafana/ropewalk.json",
		"deploy/helm/ropewalk-agent/files/rules.yml":                     "deploy/prometheus/rules.yml",
		"deploy/helm/ropewalk-crds/files/ropewalk.io_ropewalknodes.yaml": "deploy/crd/ropewalk.io_ropewalknodes.yaml",
	}
}

const madeHeader = "# SPDX-License-Identifier: Apache-2.0\n# Made of the chart in deploy/helm/ropewalk-agent by `make manifests`: change that.\n"

// namespaceManifest is the namespace as agents need it: pods on the host's network are admitted at no other level.
const namespaceManifest = `---
apiVersion: v1
kind: Namespace
metadata:
  name: ` + namespace + `
  labels:
    pod-security.kubernetes.io/enforce: privileged
    pod-security.kubernetes.io/warn: privileged
`

// text is what the file should hold.
func (m made) text(root string) (string, error) {
	manifests, err := Render(filepath.Join(root, "deploy", agentChart), Release{Name: "ropewalk-agent", Namespace: namespace, Service: "kustomize"}, m.values)
	if err != nil {
		return "", err
	}
	text := madeHeader
	if m.namespace {
		text += namespaceManifest
	}
	// Helm's order ends with what it does not know; the policy is to be there before whom it is about.
	slices.SortStableFunc(manifests, func(a, b releaseutil.Manifest) int { return cmp.Compare(rank(a), rank(b)) })
	for _, manifest := range manifests {
		if len(m.only) == 0 || slices.Contains(m.only, manifest.Head.Kind) {
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

// withoutSource drops the comment by which Helm names the template.
func withoutSource(content string) string {
	content = strings.TrimSpace(content)
	if first, rest, ok := strings.Cut(content, "\n"); ok && strings.HasPrefix(first, "# Source: ") {
		return rest
	}
	return content
}

// check compares a file of the repository with what it should hold, or writes it.
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
