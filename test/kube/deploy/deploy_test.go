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
	for _, c := range []struct{ chart, want string }{
		{crdsChart, "run make charts, then install build/charts/" + crdsChart},
		{spreadChart, "is required"},
		{meshChart, "is required"},
	} {
		_, err := Render(filepath.Join(root, "deploy", "helm", c.chart), spread(), Values{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %s", c.chart, err, c.want)
		}
	}
}

func TestGeneratedFilesAreUpToDate(t *testing.T) {
	for _, m := range files() {
		text, err := m.text(chartPath(m.chart))
		if err == nil {
			err = check(root, m.path, text, *update)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

func TestEveryValueIsDocumented(t *testing.T) {
	page := valuesPage
	for _, part := range []struct{ title, dir string }{{"Both charts", "agent"}, {spreadChart, spreadChart}, {meshChart, meshChart}} {
		text, err := os.ReadFile(filepath.Join(root, "deploy", "helm", part.dir, "values.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		values, err := readValues(text)
		if err != nil {
			t.Fatal(err)
		}
		page += valuesTable(part.title, values)
	}
	if err := check(root, "docs/helm-values.md", page, *update); err != nil {
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
		spreadChart: {{}, {"cleanup": Values{"enabled": true}}},
		meshChart:   {{}, {"cleanup": Values{"enabled": true}}, everything()},
		crdsChart:   {{}, {"keep": false}},
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
		{"a mode", Values{"mode": "mesh"}},
		{"a name that is misspelt", Values{"logLevels": "info"}},
		{"a misspelt name within", Values{"mesh": Values{"MTU": 1400}}},
		{"a port of spread", Values{"port": 51820}},
		{"a port beyond the last", Values{"metrics": Values{"port": 65536}}},
		{"a port as text", Values{"metrics": Values{"port": "9567"}}},
		{"one port as a range", Values{"spreadPorts": "51820"}},
		{"an MTU below IPv6's", Values{"mesh": Values{"pools": []any{Values{"mtu": 1279}}}}},
		{"a label that kubelets can set", Values{"mesh": Values{"exclude": Values{"nodeSelector": Values{"matchLabels": Values{"a": "b"}}}}}},
		{"an address as a prefix", Values{"mesh": Values{"podCIDRs": []any{"10.244.0.0"}}}},
		{"an interface's name that is too long", Values{"tunnel": "sixteen-letters-"}},
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
		if _, err := Render(chartPath(meshChart), mesh(), withImage(c.values)); err == nil {
			t.Errorf("%s: %v is taken", c.name, c.values)
		} else if !strings.Contains(err.Error(), "schema") {
			t.Errorf("%s: got error %v, want %q in it", c.name, err, "schema")
		}
	}
}

// TestChartsHaveNoValuesOfTheOther: neither has the other mode's rights or templates.
func TestChartsHaveNoValuesOfTheOther(t *testing.T) {
	for _, values := range []Values{{"mesh": Values{}}, {"engine": Values{}}, {"tunnel": "wg7"}, {"podCIDRSource": "node"}} {
		if _, err := Render(chartPath(spreadChart), spread(), withImage(values)); err == nil || !strings.Contains(err.Error(), "schema") {
			t.Errorf("%v: got error %v", values, err)
		}
	}
	text := render(t, spread(), Values{"scc": "on", "metrics": Values{"enabled": true, "podMonitor": Values{"enabled": true}}})
	for _, word := range []string{"ropewalk-engine", "ropewalkmeshes", "ropewalkpeers", "/var/run/wireguard", "endpointslices"} {
		if strings.Contains(text, word) {
			t.Errorf("the chart of spread has %s", word)
		}
	}
}

// one returns the agents' only object of a kind.
func one(t *testing.T, text, kind string) map[string]any {
	t.Helper()
	return oneOf(t, text, kind, spreadChart, meshChart)
}

// oneOf returns the only object of a kind that applications have.
func oneOf(t *testing.T, text, kind string, apps ...any) map[string]any {
	t.Helper()
	all, err := objects(text)
	if err != nil {
		t.Fatal(err)
	}
	all = slices.DeleteFunc(all, func(o map[string]any) bool {
		return o["kind"] != kind || !slices.Contains(apps, at(t, o, "metadata", "labels", "app.kubernetes.io/name"))
	})
	if len(all) != 1 {
		t.Fatalf("%d of the kind %s of %s", len(all), kind, apps)
	}
	return all[0]
}

func render(t *testing.T, r Release, values Values) string {
	t.Helper()
	manifests, err := Render(chartPath(r.Chart), r, withImage(values))
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
