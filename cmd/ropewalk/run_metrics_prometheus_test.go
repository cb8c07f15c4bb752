// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/test/expect"
)

const prometheusConfig = `
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs:
  - job_name: ropewalk
    static_configs: [{targets: ["` + scrapeAddr + `"]}]
`

// checkPrometheus runs Prometheus with the alerting rules, and runs all queries of the dashboard and the rules.
func (m *metricsLab) checkPrometheus(t *testing.T) {
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("needs Debian's package prometheus (make deps-test installs it)")
	}
	dir := t.TempDir()
	rules, err := filepath.Abs("../../deploy/prometheus/rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, []byte(fmt.Sprintf(prometheusConfig, rules)), 0o600); err != nil {
		t.Fatal(err)
	}
	server, err := testbed.StartProcess(t.Context(), m.left.Host, program, "--config.file="+config,
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+prometheusAddr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			t.Log(server.Log())
		}
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}()
	expect.EventuallyNoError(t, "ten scrapes", func() error {
		if err := server.Err(); err != nil {
			t.Fatal(err)
		}
		n, err := m.query(`min(count_over_time(ropewalk_interface_up[5m])) >= 10`)
		if err == nil && n == 0 {
			err = errors.New("fewer than ten")
		}
		return err
	})
	m.queryDashboard(t)
	m.checkRules(t)
}

// query returns the number of series in the result of a query.
func (m *metricsLab) query(expr string) (series int, err error) {
	var answer struct {
		Status, Error string
		Warnings      []string
		Data          struct{ Result []json.RawMessage }
	}
	_, body, err := m.get("http://" + prometheusAddr + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		return 0, err
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		return 0, fmt.Errorf("%w: %s", err, body)
	}
	if answer.Status != "success" || answer.Warnings != nil {
		return 0, fmt.Errorf("%s %v", answer.Error, answer.Warnings)
	}
	return len(answer.Data.Result), nil
}

func (m *metricsLab) queryDashboard(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile("../../deploy/grafana/ropewalk.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	// Metrics of XDP are absent here, because it is not in use.
	variables := strings.NewReplacer("$instance", ".*", "$interface", ".*", "$__rate_interval", "10s")
	queries := 0
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			queries++
			if n, err := m.query(variables.Replace(target.Expr)); err != nil || n == 0 && !strings.Contains(target.Expr, "ropewalk_xdp_") {
				t.Errorf("panel %q: got %d series, error %v, want at least 1 series: %s", p.Title, n, err, target.Expr)
			}
		}
	}
	if queries < 20 {
		t.Errorf("got %d queries in the dashboard, want at least 20", queries)
	}
}

// checkRules checks that Prometheus has evaluated every rule, that recording rules recorded, and that no alert fires.
func (m *metricsLab) checkRules(t *testing.T) {
	t.Helper()
	var answer struct {
		Data struct {
			Groups []struct {
				Rules []struct {
					Name, Type, Health, LastError, State string
				}
			}
		}
	}
	evaluated := 0
	expect.EventuallyNoError(t, "all rules to be evaluated", func() error {
		_, body, err := m.get("http://" + prometheusAddr + "/api/v1/rules")
		if err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			return err
		}
		evaluated = 0
		for _, g := range answer.Data.Groups {
			for _, r := range g.Rules {
				if r.Health == "unknown" {
					return fmt.Errorf("%s has not been evaluated", r.Name)
				}
				evaluated++
			}
		}
		return nil
	})
	if evaluated < 10 {
		t.Errorf("got %d rules, want at least 10", evaluated)
	}
	for _, g := range answer.Data.Groups {
		for _, r := range g.Rules {
			if r.Health != "ok" || r.State == "firing" || r.State == "pending" {
				t.Errorf("got %+v, want Health \"ok\", State other than \"firing\", State other than \"pending\"", r)
			}
			if r.Type != "recording" {
				continue
			}
			if n, err := m.query(r.Name); n == 0 || err != nil {
				t.Errorf("rule %s: got %d series, error %v, want at least 1 series", r.Name, n, err)
			}
		}
	}
}
