// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	"sigs.k8s.io/yaml"
)

func promtool(t *testing.T, args ...string) {
	t.Helper()
	tool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("needs promtool, of Debian's package prometheus (make deps-kube installs it)")
	}
	if out, err := exec.Command(tool, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %v: %v\n%s", args, err, out)
	}
}

func TestAgentAlertsFire(t *testing.T) {
	promtool(t, "test", "rules", "testdata/agent-rules_test.yml")
}

// TestRulesSurviveRendering: the rules contain braces of their own, which templates must not interpret.
func TestRulesSurviveRendering(t *testing.T) {
	on := Values{"enabled": true}
	metrics := Values{"enabled": true, "rules": on}
	var rule map[string]any
	for _, c := range []struct {
		chart  Release
		values Values
		want   []string
	}{
		{spread(), Values{"metrics": metrics}, []string{"agent-rules.yml", "rules.yml"}},
		{mesh(), Values{"metrics": metrics, "engine": Values{"enabled": false}}, []string{"agent-rules.yml", "mesh-rules.yml", "rules.yml"}},
		{mesh(), Values{"metrics": metrics}, []string{"agent-rules.yml", "mesh-rules.yml", "engine-rules.yml", "rules.yml"}},
	} {
		rule = one(t, render(t, c.chart, c.values), "PrometheusRule")
		var want []any
		for _, name := range c.want {
			text, err := os.ReadFile(filepath.Join(chartPath(c.chart.Chart), "files", name))
			if err != nil {
				t.Fatal(err)
			}
			var file map[string]any
			if err := yaml.Unmarshal(text, &file); err != nil {
				t.Fatal(err)
			}
			want = append(want, file["groups"].([]any)...)
		}
		if got := at(t, rule, "spec", "groups"); !reflect.DeepEqual(got, want) {
			t.Errorf("%v: got\n%v\nwant\n%v", c.values, got, want)
		}
	}
	text, err := yaml.Marshal(at(t, rule, "spec"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}

func TestDashboardSurvivesRendering(t *testing.T) {
	on := Values{"enabled": true}
	config := one(t, render(t, mesh(), Values{"metrics": Values{"enabled": true, "dashboard": on}}), "ConfigMap")
	for _, name := range []string{"ropewalk.json", "ropewalk-agents.json"} {
		text, _ := at(t, config, "data", name).(string)
		want, err := os.ReadFile(filepath.Join(root, "deploy", "grafana", name))
		if err != nil {
			t.Fatal(err)
		}
		if text != string(want) || !json.Valid([]byte(text)) {
			t.Errorf("%s: got %d bytes, want %d", name, len(text), len(want))
		}
	}
	if at(t, config, "metadata", "labels", "grafana_dashboard") != "1" {
		t.Error("Grafana's sidecar does not find it")
	}
}
