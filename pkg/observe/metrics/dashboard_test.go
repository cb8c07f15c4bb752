// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/test/golden"
)

// The dashboards in deploy/grafana are generated from the panels: go test ./pkg/observe/metrics -run Dashboard -update

// query is one query of a panel, with the legend of its series.
type query struct{ expr, legend string }

// panel is one panel of the dashboard, which is 24 columns wide.
type panel struct {
	title, help, kind, unit string
	width                   int
	stack                   bool
	queries                 []query
}

// In queries, $sel stands for the label matchers of the selected interfaces, $lanes for the same without lane slow, $host for those of the
// selected instances, and $w for the range of rates.
var panels = []panel{
	{title: "Interfaces up", kind: "stat", width: 4, queries: []query{{"ropewalk_interface_up$sel", "{{instance}} {{interface}}"}}},
	{
		title: "Peers", help: "Established: a handshake in the last 180 s. An idle peer has no traffic; that is normal.", kind: "stat", width: 8,
		queries: []query{{"sum by (state) (ropewalk_peers$sel)", "{{state}}"}},
	},
	{title: "Peers with spreading", kind: "stat", width: 4, queries: []query{{"sum(ropewalk_peers_spread$sel)", "spread"}}},
	{title: "Lanes", kind: "stat", width: 4, queries: []query{{"ropewalk_lanes$sel", "{{instance}} {{interface}}"}}},
	{title: "Version", kind: "stat", width: 4, queries: []query{{"count by (version) (ropewalk_build_info$host)", "{{version}}"}}},

	{
		title: "Throughput", help: "Bytes of inner packets.", unit: "bps", width: 12, queries: []query{
			{"8 * sum without (lane) (rate(ropewalk_lane_transmit_bytes_total$sel[$w]))", "{{instance}} {{interface}} sent"},
			{"8 * sum without (lane) (rate(ropewalk_lane_receive_bytes_total$sel[$w]))", "{{instance}} {{interface}} received"},
		},
	},
	{
		title: "Packets", unit: "pps", width: 12, queries: []query{
			{"sum without (lane) (rate(ropewalk_lane_transmit_packets_total$sel[$w]))", "{{instance}} {{interface}} sent"},
			{"sum without (lane) (rate(ropewalk_lane_receive_packets_total$sel[$w]))", "{{instance}} {{interface}} received"},
		},
	},

	{
		title: "Lanes: sent", help: "Each lane has its own TUN queue.", unit: "pps", width: 8, stack: true,
		queries: []query{{"sum by (lane) (rate(ropewalk_lane_transmit_packets_total$sel[$w]))", "lane {{lane}}"}},
	},
	{
		title: "Lanes: received", help: "Each lane has its own socket. With spreading, each has its own NIC queue.", unit: "pps", width: 8, stack: true,
		queries: []query{{"sum by (lane) (rate(ropewalk_lane_receive_packets_total$sel[$w]))", "lane {{lane}}"}},
	},
	{
		title: "Busiest lane / mean", help: "1 is an even load. The number of lanes means that one lane carries everything.", width: 8, queries: []query{
			{"max without (lane) (rate(ropewalk_lane_transmit_bytes_total$lanes[$w])) / avg without (lane) (rate(ropewalk_lane_transmit_bytes_total$lanes[$w]))", "{{instance}} {{interface}} sent"},
			{"max without (lane) (rate(ropewalk_lane_receive_bytes_total$lanes[$w])) / avg without (lane) (rate(ropewalk_lane_receive_bytes_total$lanes[$w]))", "{{instance}} {{interface}} received"},
		},
	},

	{
		title: "Messages per run", help: "Length of the runs that UDP_SEGMENT and UDP_GRO carry.", width: 8, queries: []query{
			{"histogram_quantile(0.5, sum by (direction, le) (rate(ropewalk_udp_batch_messages_bucket$sel[$w])))", "{{direction}} median"},
			{"histogram_quantile(0.95, sum by (direction, le) (rate(ropewalk_udp_batch_messages_bucket$sel[$w])))", "{{direction}} 95%"},
			{"sum by (direction) (rate(ropewalk_udp_batch_messages_sum$sel[$w])) / sum by (direction) (rate(ropewalk_udp_batch_messages_count$sel[$w]))", "{{direction}} mean"},
		},
	},
	{
		title: "Run length, sent", kind: "heatmap", width: 8,
		queries: []query{{`sum by (le) (increase(ropewalk_udp_batch_messages_bucket{instance=~"$instance",interface=~"$interface",direction="transmit"}[$w]))`, "{{le}}"}},
	},
	{
		title: "Packets per train (TUN device)", help: "Sent ones without lane slow, whose keepalives and other control messages come from no train.", width: 8, queries: []query{
			{"sum without (lane) (rate(ropewalk_lane_transmit_packets_total$lanes[$w])) / sum without (lane) (rate(ropewalk_lane_transmit_trains_total$lanes[$w]))", "{{instance}} {{interface}} sent"},
			{"sum without (lane) (rate(ropewalk_lane_receive_packets_total$sel[$w])) / sum without (lane) (rate(ropewalk_lane_receive_trains_total$sel[$w]))", "{{instance}} {{interface}} received"},
		},
	},

	{
		title: "Drops by reason", help: "docs/metrics.md explains each reason.", unit: "pps", width: 12,
		queries: []query{{"sum by (stage, reason) (rate(ropewalk_dropped_packets_total$sel[$w])) > 0", "{{stage}}: {{reason}}"}},
	},
	{
		title: "Handshakes", help: "By local role: started and ended; and handshake messages that were refused, by reason.", width: 12, queries: []query{
			{"sum by (interface, role) (increase(ropewalk_handshakes_started_total$sel[$w]))", "{{interface}} {{role}} started"},
			{"sum by (interface, role, result) (increase(ropewalk_handshakes_total$sel[$w]))", "{{interface}} {{role}} {{result}}"},
			{`sum by (interface, reason) (increase(ropewalk_dropped_packets_total{instance=~"$instance",interface=~"$interface",stage="handshake"}[$w]))`, "{{interface}} {{reason}}"},
		},
	},

	{
		title: "Time since the peers' last handshake", help: "Above 180 s a peer is idle, or it does not answer the packets sent to it.", unit: "s", width: 12,
		queries: []query{{"time() - (ropewalk_peer_last_handshake_timestamp_seconds$sel > 0)", "{{interface}} {{public_key}}"}},
	},
	{
		title: "Peers with most traffic", help: "WireGuard messages.", unit: "bps", width: 12, queries: []query{
			{"topk(10, 8 * rate(ropewalk_peer_transmit_bytes_total$sel[$w]))", "to {{public_key}}"},
			{"topk(10, 8 * rate(ropewalk_peer_receive_bytes_total$sel[$w]))", "from {{public_key}}"},
		},
	},
	{
		title: "Peers with most packets", help: "WireGuard messages, including handshakes and keepalives.", unit: "pps", width: 12, queries: []query{
			{"topk(10, rate(ropewalk_peer_transmit_packets_total$sel[$w]))", "to {{public_key}}"},
			{"topk(10, rate(ropewalk_peer_receive_packets_total$sel[$w]))", "from {{public_key}}"},
		},
	},
	{
		title: "Drops by peer", help: "Messages from a peer that were refused, and messages to it that were dropped.", unit: "pps", width: 12,
		queries: []query{{"topk(10, rate(ropewalk_peer_dropped_packets_total$sel[$w]))", "{{direction}} {{public_key}}"}},
	},

	{
		title: "Worker jobs by who completed them", unit: "ops", width: 8, queries: []query{
			{"sum by (direction, by) (rate(ropewalk_worker_jobs_completed_total$sel[$w]))", "{{direction}} {{by}}"},
			{"sum by (direction) (rate(ropewalk_worker_backoffs_total$sel[$w]))", "{{direction}} backoffs"},
		},
	},
	{
		title: "AF_XDP", help: "Verdicts and drops of the XDP program, and datagrams that its sockets lost.", unit: "pps", width: 24, queries: []query{
			{"sum by (event) (rate(ropewalk_xdp_packets_total$sel[$w]))", "{{event}}"},
			{"sum by (reason) (rate(ropewalk_xdp_dropped_packets_total$sel[$w]))", "dropped: {{reason}}"},
			{"sum(rate(ropewalk_xdp_lost_datagrams_total$sel[$w]))", "lost"},
			{"sum(rate(ropewalk_xdp_udp_runs_total$sel[$w]))", "runs sent by UDP sockets"},
		},
	},
	{
		title: "CPU", help: "CPU time of the process, in cores.", width: 8,
		queries: []query{{"sum by (instance) (rate(process_cpu_seconds_total$host[$w]) * on (job, instance) group_left () ropewalk_build_info)", "{{instance}}"}},
	},
	{
		title: "Memory", unit: "bytes", width: 8,
		queries: []query{{"sum by (instance) (process_resident_memory_bytes$host * on (job, instance) group_left () ropewalk_build_info)", "{{instance}}"}},
	},
	{
		title: "Fast paths", help: "1: in use; 0: the fallback is in use.", kind: "table", width: 12,
		queries: []query{{"min by (instance, interface, feature) (ropewalk_feature_enabled$sel)", ""}},
	},
	{
		title: "Peers", kind: "table", width: 12,
		queries: []query{{"ropewalk_peer_info$sel", ""}},
	},
}

var placeholders = strings.NewReplacer(
	"$sel", `{instance=~"$instance",interface=~"$interface"}`,
	"$lanes", `{instance=~"$instance",interface=~"$interface",lane!="slow"}`,
	"$host", `{instance=~"$instance"}`, "$where", `{instance=~"$instance"`,
	"$w", "$__rate_interval",
)

type object = map[string]any

// board is a dashboard. Its instances are those that have the metric instances.
type board struct {
	name, instances string
	panels          []panel
}

// allBoards returns the dashboards: that of tunnels, and that of agents.
func allBoards() []board {
	return []board{{"ropewalk", "ropewalk_interface_up", panels}, {"ropewalk-agents", "ropewalk_agent_peers", agentPanels}}
}

// model returns the JSON model of a dashboard.
func (b *board) model() object {
	source := object{"type": "prometheus", "uid": "${datasource}"}
	var all []object
	x, y, row := 0, 0, 0
	for i, p := range b.panels {
		height := 8
		if p.kind == "stat" {
			height = 4
		}
		if x+p.width > 24 {
			x, y, row = 0, y+row, 0
		}
		all = append(all, p.render(i+1, source, object{"x": x, "y": y, "w": p.width, "h": height}))
		x, row = x+p.width, max(row, height)
	}
	variables := []object{{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}, variable("instance", b.instances, source)}
	if b.name == "ropewalk" {
		variables = append(variables, variable("interface", `ropewalk_interface_up{instance=~"$instance"}`, source))
	}
	return object{
		"uid": b.name, "title": strings.ReplaceAll(b.name, "-", " "), "tags": []string{"ropewalk", "wireguard"}, "schemaVersion": 39, "version": 1,
		"editable": true, "refresh": "30s", "timezone": "browser", "time": object{"from": "now-1h", "to": "now"},
		"templating": object{"list": variables}, "panels": all,
	}
}

func variable(name, of string, source object) object {
	return object{
		"name": name, "label": strings.ToUpper(name[:1]) + name[1:], "type": "query", "datasource": source,
		"query": object{"query": "label_values(" + of + ", " + name + ")", "refId": name}, "refresh": 2, "includeAll": true,
		"multi": true, "current": object{"text": "All", "value": "$__all"}, "allValue": ".*", "sort": 1,
	}
}

func (p panel) render(id int, source, place object) object {
	kind := p.kind
	if kind == "" {
		kind = "timeseries"
	}
	var targets []object
	for i, q := range p.queries {
		t := object{"refId": string(rune('A' + i)), "datasource": source, "expr": placeholders.Replace(q.expr), "legendFormat": q.legend}
		switch kind {
		case "table":
			t["format"], t["instant"] = "table", true
		case "stat":
			t["instant"] = true
		case "heatmap":
			t["format"] = "heatmap"
		}
		targets = append(targets, t)
	}
	defaults := object{"unit": p.unit, "min": 0}
	if p.unit == "" {
		defaults["unit"] = "short"
	}
	if p.stack {
		defaults["custom"] = object{"stacking": object{"mode": "normal"}, "fillOpacity": 30}
	}
	return object{
		"id": id, "title": p.title, "description": p.help, "type": kind, "datasource": source, "gridPos": place,
		"targets": targets, "fieldConfig": object{"defaults": defaults, "overrides": []any{}}, "options": object{},
	}
}

func TestDashboardIsCurrent(t *testing.T) {
	for _, b := range allBoards() {
		text, err := json.MarshalIndent(b.model(), "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		text = []byte(strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(string(text)))
		if !json.Valid(text) {
			t.Fatal("invalid JSON")
		}
		golden.Check(t, filepath.Join("..", "..", "..", "deploy", "grafana", b.name+".json"), string(text)+"\n")
	}
}

func TestDashboardPanelsDoNotOverlap(t *testing.T) {
	for _, b := range allBoards() {
		taken := map[[2]int]string{}
		for _, p := range b.model()["panels"].([]object) {
			at := p["gridPos"].(object)
			for x := range at["w"].(int) {
				for y := range at["h"].(int) {
					cell := [2]int{at["x"].(int) + x, at["y"].(int) + y}
					if cell[0] >= 24 || taken[cell] != "" {
						t.Fatalf("%q: %v is outside, or overlaps with %q", p["title"], cell, taken[cell])
					}
					taken[cell] = p["title"].(string)
				}
			}
		}
	}
}

// metricName matches the names of ropewalk's metrics in a query.
var metricName = regexp.MustCompile(`\bropewalk_[a-z_]+`)

// unknownMetrics returns the metric names in text that do not exist.
func unknownMetrics(text string) (unknown []string) {
	for _, name := range metricName.FindAllString(text, -1) {
		known := slices.ContainsFunc(slices.Concat(families, wireGuardFamilies, spreadFamilies), func(d *family) bool {
			if d.kind == histogram {
				return slices.Contains([]string{d.name + "_bucket", d.name + "_sum", d.name + "_count"}, name)
			}
			return d.name == name
		})
		if !known {
			unknown = append(unknown, name)
		}
	}
	return unknown
}

func TestPanelsShowOnlySelectedInstances(t *testing.T) {
	joined := regexp.MustCompile(`\* on \(.*?\) group_left \(\) \w+`) // with a metric that is selected
	metric := regexp.MustCompile(`\b(?:ropewalk|process)_\w+`)
	selected := regexp.MustCompile(metric.String() + `(?:\$sel|\$lanes|\$host|\$where|\{instance=~"\$instance")`)
	for _, p := range slices.Concat(panels, agentPanels) {
		for _, q := range p.queries {
			expr := joined.ReplaceAllString(q.expr, "")
			if all, some := metric.FindAllString(expr, -1), selected.FindAllString(expr, -1); len(some) != len(all) {
				t.Errorf("%s: got %d metrics of the selected instances, want %d: %s", p.title, len(some), len(all), q.expr)
			}
		}
	}
}

// TestAgentPanelsShowFewInstances: there may be thousands.
func TestAgentPanelsShowFewInstances(t *testing.T) {
	for _, p := range agentPanels {
		for _, q := range p.queries {
			if each := strings.Contains(q.legend, "{{instance}}"); each && p.kind != "table" && !strings.Contains(q.expr, "k(20, ") {
				t.Errorf("%s: shows all instances: %s", p.title, q.expr)
			}
		}
	}
}

// TestPacketsPerTrainCountsTrainsOnly: the messages of lane slow come from no train, and another instance is not selected.
func TestPacketsPerTrainCountsTrainsOnly(t *testing.T) {
	i := slices.IndexFunc(panels, func(p panel) bool { return strings.HasPrefix(p.title, "Packets per train") })
	var series, checks []object
	for _, direction := range []string{"transmit", "receive"} {
		for _, s := range []struct{ instance, lane, packets, trains string }{
			{"shown", "0", "0+960x20", "0+15x20"}, {"shown", "1", "0+120x20", "0+30x20"}, {"hidden", "0", "0+30x20", "0+15x20"},
		} {
			labels := `_total{instance="` + s.instance + `",interface="wg0",lane="` + s.lane + `"}`
			series = append(series, object{"series": "ropewalk_lane_" + direction + "_packets" + labels, "values": s.packets},
				object{"series": "ropewalk_lane_" + direction + "_trains" + labels, "values": s.trains})
		}
	}
	slow := `_total{instance="shown",interface="wg0",lane="slow"}`
	series = append(series, object{"series": "ropewalk_lane_transmit_packets" + slow, "values": "0+150x20"},
		object{"series": "ropewalk_lane_transmit_trains" + slow, "values": "0x20"})
	selection := strings.NewReplacer("$instance", "shown", "$interface", ".*", "$__rate_interval", "1m")
	for _, q := range panels[i].queries {
		checks = append(checks, object{
			"expr": selection.Replace(placeholders.Replace(q.expr)), "eval_time": "5m",
			"exp_samples": []object{{"labels": `{instance="shown", interface="wg0"}`, "value": 24}},
		})
	}
	text, err := json.Marshal(object{"tests": []object{{"interval": "15s", "input_series": series, "promql_expr_test": checks}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "test.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := promtool(t, "test", "rules", file).CombinedOutput(); err != nil || len(checks) != 2 {
		t.Errorf("%d queries: %v\n%s", len(checks), err, out)
	}
}

func TestDashboardQueriesExistingMetrics(t *testing.T) {
	used := 0
	for _, p := range panels {
		for _, q := range p.queries {
			used += len(metricName.FindAllString(q.expr, -1))
			if unknown := unknownMetrics(q.expr); unknown != nil {
				t.Errorf("%s: got unknown metrics %v, want nil", p.title, unknown)
			}
		}
	}
	if used < len(panels) {
		t.Errorf("%d names in %d panels", used, len(panels))
	}
}

// TestAgentPanelsCoverAllMetrics compares the queries with the table of the agents' metrics, which their own test keeps complete.
func TestAgentPanelsCoverAllMetrics(t *testing.T) {
	table, err := os.ReadFile("../../../docs/kubernetes/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(ropewalk_agent_[a-z_]+)").FindAllStringSubmatch(string(table), -1) {
		shown[row[1]] = false
	}
	for _, p := range agentPanels {
		for _, q := range p.queries {
			for _, name := range unknownMetrics(q.expr) {
				if _, exists := shown[name]; !exists {
					t.Errorf("%s: got the unknown metric %s", p.title, name)
				}
				shown[name] = true
			}
		}
	}
	for name, is := range shown {
		if !is {
			t.Errorf("got no panel with %s, want one", name)
		}
	}
	if len(shown) < 20 {
		t.Errorf("got %d metrics of agents, want at least 20", len(shown))
	}
}
