// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// collector is a configuration of the OpenTelemetry collector, as far as its parts refer to each other.
type collector struct {
	Receivers struct {
		Prometheus struct {
			Config json.RawMessage
		}
	}
	Processors, Exporters map[string]json.RawMessage
	Service               struct {
		Pipelines map[string]struct{ Receivers, Processors, Exporters []string }
	}
}

func TestCollectorScrapesRopewalk(t *testing.T) {
	for name, want := range map[string][]string{
		"host.yaml":       {"127.0.0.1:9820"},
		"kubernetes.yaml": {`$1:9567`, `[$1]:9567`, `$1:9568`, `[$1]:9568`, "ropewalk-agent|ropewalk-engine"},
	} {
		var c collector
		decoder := yaml.NewYAMLToJSONDecoder(strings.NewReader(read(t, "deploy/otel/"+name)))
		if err := decoder.Decode(&c); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(c.Service.Pipelines) == 0 {
			t.Errorf("%s has no pipeline", name)
		}
		for kind, p := range c.Service.Pipelines {
			if len(p.Receivers) != 1 || p.Receivers[0] != "prometheus" {
				t.Errorf("%s: pipeline %s has the receivers %q, want prometheus", name, kind, p.Receivers)
			}
			for of, names := range map[string][]string{"processor": p.Processors, "exporter": p.Exporters} {
				all := map[string]map[string]json.RawMessage{"processor": c.Processors, "exporter": c.Exporters}[of]
				for _, n := range names {
					if _, ok := all[n]; !ok {
						t.Errorf("%s: pipeline %s has %s %s, which is not configured", name, kind, of, n)
					}
				}
			}
		}
		// The collector reads $$ as $.
		config := strings.ReplaceAll(string(c.Receivers.Prometheus.Config), "$$", "$")
		for _, text := range want {
			if !strings.Contains(config, text) {
				t.Errorf("%s does not scrape %s", name, text)
			}
		}
		checkScrapeConfig(t, name, config)
	}
}

func checkScrapeConfig(t *testing.T, name, config string) {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Log("promtool (package prometheus) is missing: the scrape configuration was not checked")
		return
	}
	// Debian's promtool knows no service discovery of Kubernetes.
	var scrapes struct {
		Configs []map[string]any `json:"scrape_configs"`
	}
	if err := json.Unmarshal([]byte(config), &scrapes); err != nil {
		t.Fatal(err)
	}
	for _, c := range scrapes.Configs {
		delete(c, "kubernetes_sd_configs")
	}
	text, err := json.Marshal(scrapes)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "prometheus.yml") // JSON is YAML
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command(promtool, "check", "config", path)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Errorf("%s: %v: %s", name, err, out.String())
	}
}
