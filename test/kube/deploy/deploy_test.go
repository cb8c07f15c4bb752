// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
)

var update = flag.Bool("update", false, "rewrite the files that are generated from the chart")

// root is the repository's root.
const root = "../../.."

// charts is the directory of the complete charts.
var charts string

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := runWithCharts(m)
	if err != nil {
		log.Fatal(err)
	}
	os.Exit(code)
}

// runWithCharts stages the charts as `make charts` does.
func runWithCharts(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "charts")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	charts = dir
	if out, err := exec.Command(filepath.Join(root, "deploy", "helm", "stage.sh"), dir).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("staging the charts: %w\n%s", err, out)
	}
	return m.Run(), nil
}

func chartPath(chart string) string { return filepath.Join(charts, chart) }

// TestChartWithoutStagedFilesFails: it would install no CRD, or empty rules.
func TestChartWithoutStagedFilesFails(t *testing.T) {
	on := Values{"enabled": true}
	for _, c := range []struct {
		chart  string
		values Values
	}{
		{crdsChart, Values{}},
		{agentChart, withImage(Values{"metrics": Values{"enabled": true, "rules": on}})},
		{agentChart, withImage(Values{"metrics": Values{"enabled": true, "dashboard": on}})},
	} {
		_, err := Render(filepath.Join(root, "deploy", "helm", c.chart), here(), c.values)
		if err == nil || !strings.Contains(err.Error(), "run make charts, then install build/charts/"+c.chart) {
			t.Errorf("%s with %v: got error %v, want one with the command", c.chart, c.values, err)
		}
	}
}

func TestGeneratedFilesAreUpToDate(t *testing.T) {
	for _, m := range files() {
		text, err := m.text(chartPath(agentChart))
		if err == nil {
			err = check(root, m.path, text, *update)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

func TestEveryValueIsDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chartPath(agentChart), "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	values, err := readValues(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := check(root, "docs/helm-values.md", valuesPage(values), *update); err != nil {
		t.Error(err)
	}
}

func TestUndocumentedValueIsAnError(t *testing.T) {
	for _, text := range []string{"a: 1\n", "# a\na: 1\nb:\n  # c\n  c: 1\n  d: 2\n", "[", ""} {
		if v, err := readValues([]byte(text)); err == nil {
			t.Errorf("%q: got %v", text, v)
		}
	}
}

func TestChartsPassHelmLint(t *testing.T) {
	for chart, sets := range map[string][]Values{
		agentChart: {{}, {"mode": "mesh"}, {"cleanup": Values{"enabled": true}}, everything()},
		crdsChart:  {{}, {"keep": false}},
	} {
		for _, values := range sets {
			values, err := clone(values)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range lint.AllWithKubeVersion(chartPath(chart), values, namespace, nil).Messages {
				if m.Severity > support.InfoSev {
					t.Errorf("%s with %v: got %v, want Severity at most %v", chart, values, m, support.InfoSev)
				}
			}
		}
	}
}

func TestSchemaRejectsInvalidValues(t *testing.T) {
	for _, c := range []struct {
		name   string
		values Values
	}{
		{"a mode that is none", Values{"mode": "both"}},
		{"a name that is misspelt", Values{"mod": "mesh"}},
		{"a misspelt name within", Values{"mesh": Values{"MTU": 1400}}},
		{"a port beyond the last", Values{"port": 65536}},
		{"a port as text", Values{"port": "51820"}},
		{"one port as a range", Values{"spreadPorts": "51820"}},
		{"an MTU below IPv6's", Values{"mesh": Values{"pools": []any{Values{"mtu": 1279}}}}},
		{"a label that kubelets can set", Values{"mesh": Values{"exclude": Values{"nodeSelector": Values{"matchLabels": Values{"a": "b"}}}}}},
		{"an address as a prefix", Values{"mesh": Values{"podCIDRs": []any{"10.244.0.0"}}}},
		{"an interface's name that is too long", Values{"mesh": Values{"tunnel": "sixteen-letters-"}}},
		{"a limit on CPU", Values{"resources": Values{"limits": Values{"cpu": "1"}}}},
		{"all capabilities", Values{"capabilities": []any{"ALL"}}},
		{"the capability that is as good as all", Values{"capabilities": []any{"NET_ADMIN", "SYS_ADMIN"}}},
		{"all capabilities for engines", Values{"engine": Values{"capabilities": []any{"ALL"}}}},
		{"a PodMonitor of metrics that nobody reaches", Values{"metrics": Values{"podMonitor": Values{"enabled": true}}}},
		{"a digest that is none", Values{"image": Values{"digest": "latest"}}},
		{"no node at a time", Values{"maxUnavailable": 0}},
		{"no engine at a time", Values{"engine": Values{"maxSurge": 0}}},
		{"lanes of an agent", Values{"mesh": Values{"lanes": 2}}},
		{"a number of workers as text", Values{"engine": Values{"workers": "two"}}},
		{"no node at a time, of many", Values{"maxUnavailable": "0%"}},
		{"an argument that is no flag", Values{"extraArgs": []any{"cleanup"}}},
		{"a strategy that is none", Values{"updateStrategy": "Recreate"}},
		{"a name with capitals", Values{"nameOverride": "Ropewalk"}},
		{"a variable without a name", Values{"extraEnv": []any{Values{"value": "1"}}}},
		{"a URL as a host", Values{"apiServer": Values{"host": "https://192.0.2.1"}}},
	} {
		if _, err := Render(chartPath(agentChart), Release{Name: "r", Namespace: namespace}, c.values); err == nil {
			t.Errorf("%s: %v is taken", c.name, c.values)
		} else if !strings.Contains(err.Error(), "schema") {
			t.Errorf("%s: got error %v, want %q in it", c.name, err, "schema")
		}
	}
}

// one returns the agents' only object of a kind.
func one(t *testing.T, text, kind string) map[string]any {
	t.Helper()
	return oneOf(t, text, kind, "ropewalk-agent")
}

// oneOf returns the only object of a kind that an application has.
func oneOf(t *testing.T, text, kind, app string) map[string]any {
	t.Helper()
	all, err := objects(text)
	if err != nil {
		t.Fatal(err)
	}
	all = slices.DeleteFunc(all, func(o map[string]any) bool {
		return o["kind"] != kind || at(t, o, "metadata", "labels", "app.kubernetes.io/name") != app
	})
	if len(all) != 1 {
		t.Fatalf("%d of the kind %s of %s", len(all), kind, app)
	}
	return all[0]
}

func render(t *testing.T, r Release, values Values) string {
	t.Helper()
	manifests, err := Render(chartPath(agentChart), r, withImage(values))
	if err != nil {
		t.Fatal(err)
	}
	return stream(manifests)
}

// at follows a path of keys and indices.
func at(t *testing.T, o any, path ...any) any {
	t.Helper()
	for _, step := range path {
		switch step := step.(type) {
		case string:
			m, _ := o.(map[string]any)
			o = m[step]
		case int:
			l, _ := o.([]any)
			if step >= len(l) {
				return nil
			}
			o = l[step]
		}
	}
	return o
}
