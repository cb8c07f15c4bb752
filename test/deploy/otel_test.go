// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
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
	for _, name := range []string{"host.yaml", "kubernetes.yaml"} {
		var c collector
		parse(t, read(t, "deploy/otel/"+name), &c)
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
		config := c.scrapes()
		if name == "host.yaml" && !strings.Contains(config, "127.0.0.1:9820") {
			t.Errorf("%s does not scrape 127.0.0.1:9820", name)
		}
		checkScrapeConfig(t, name, config)
	}
}

// scrapes returns the configuration of Prometheus. The collector reads $$ as $.
func (c *collector) scrapes() string {
	return strings.ReplaceAll(string(c.Receivers.Prometheus.Config), "$$", "$")
}

// relabeling is a rule of Prometheus, with the actions keep and replace.
type relabeling struct {
	Sources     []string `json:"source_labels"`
	Regex       string
	Action      string
	Target      string `json:"target_label"`
	Replacement *string
}

// relabeled returns the labels of a target after the rules; nil: it is not scraped.
func relabeled(labels map[string]string, rules []relabeling) map[string]string {
	labels = maps.Clone(labels)
	for _, r := range rules {
		var values []string
		for _, name := range r.Sources {
			values = append(values, labels[name])
		}
		value, replacement := strings.Join(values, ";"), "$1"
		if r.Replacement != nil {
			replacement = *r.Replacement
		}
		regex := regexp.MustCompile("^(?:" + cmp.Or(r.Regex, "(.*)") + ")$")
		match := regex.FindStringSubmatchIndex(value)
		switch {
		case r.Action == "keep" && match == nil:
			return nil
		case r.Action != "keep" && match != nil:
			labels[r.Target] = string(regex.ExpandString(nil, replacement, value, match))
		}
	}
	return labels
}

// daemonSet is what a collector sees of its pods.
type daemonSet struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				Containers []struct {
					Name string
					Env  []struct{ Name, Value string }
				}
			}
		}
	}
}

// TestCollectorScrapesPodsOfCharts has the manifests that `make manifests` renders from the charts.
func TestCollectorScrapesPodsOfCharts(t *testing.T) {
	var c collector
	parse(t, read(t, "deploy/otel/kubernetes.yaml"), &c)
	var config struct {
		Scrapes []struct {
			Relabelings []relabeling `json:"relabel_configs"`
		} `json:"scrape_configs"`
	}
	if err := json.Unmarshal([]byte(c.scrapes()), &config); err != nil || len(config.Scrapes) != 1 {
		t.Fatalf("got %d scrape configurations, %v, want one", len(config.Scrapes), err)
	}
	found := map[string]bool{}
	for _, mode := range []string{"spread", "mesh"} {
		for doc := range strings.SplitSeq(read(t, "deploy/kustomize/"+mode+"/agent.yaml"), "\n---\n") {
			var set daemonSet
			parse(t, doc, &set)
			if set.Kind != "DaemonSet" {
				continue
			}
			found[set.Metadata.Name] = true
			container := set.Spec.Template.Spec.Containers[0]
			port := ""
			for _, e := range container.Env {
				if e.Name == "LISTEN" {
					port = e.Value[strings.LastIndexByte(e.Value, ':'):]
				}
			}
			for ip, host := range map[string]string{"192.0.2.1": "192.0.2.1", "2001:db8::1": "[2001:db8::1]"} {
				labels := map[string]string{"__meta_kubernetes_pod_container_name": container.Name, "__meta_kubernetes_pod_ip": ip}
				for name, value := range set.Spec.Template.Metadata.Labels {
					labels["__meta_kubernetes_pod_label_"+regexp.MustCompile("[^a-zA-Z0-9_]").ReplaceAllString(name, "_")] = value
				}
				if got := relabeled(labels, config.Scrapes[0].Relabelings); got["__address__"] != host+port || got["job"] != set.Metadata.Name {
					t.Errorf("%s at %s: got the address %q and the job %q, want %q and %q", set.Metadata.Name, ip, got["__address__"], got["job"], host+port, set.Metadata.Name)
				}
			}
		}
	}
	if want := []string{"ropewalk-engine", "ropewalk-mesh", "ropewalk-spread"}; !slices.Equal(slices.Sorted(maps.Keys(found)), want) {
		t.Errorf("got the DaemonSets %v, want %q", found, want)
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
