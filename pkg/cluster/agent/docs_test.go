// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/pkg/cluster/meshmode"
	"github.com/ropewalk/ropewalk/pkg/cluster/proof"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/test/golden"
)

// The table of the agent's metrics is generated from this file, the registry and the alerts: go test ./pkg/cluster/agent -run Documentation -update
const (
	docPath    = "../../../docs/kubernetes/operate.md"
	docBegin   = "<!-- agent metrics: written by go test ./pkg/cluster/agent -update -->"
	docEnd     = "<!-- end of agent metrics -->"
	rulesPaths = "../../../deploy/helm/*/files/*-rules.yml"
)

// operatorActions has the reaction of an operator to the value of each metric.
var operatorActions = map[string]string{
	"ropewalk_agent_changes_total":                   "none: it rises when nodes join, leave or change",
	"ropewalk_agent_clear_nodes":                     "if not 0: `ropewalk mesh check` names the nodes and reasons (check `encryption`)",
	"ropewalk_agent_cleartext":                       "none during a [rollout](encryption.md#rolling-out-and-back) and with `mesh.cleartext=Always`. If it stays 1: the condition `Ready` says whether nodes have no tunnel or unknown [pod prefixes](mesh.md#pod-prefixes)",
	"ropewalk_agent_condition":                       "the condition of that type (`kubectl get ropewalknodes -o wide`) has the reason: [conditions of a node](encryption.md#conditions-of-a-node)",
	"ropewalk_agent_guarded":                         "if it stays 0: the condition `Encrypted` (`kubectl get ropewalknodes -o wide`) has the reason, and names the programs in front of the guard",
	"ropewalk_agent_guard_packets_total":             "if `remote` rises: the network plugin does not hand pods' packets to the node's routing; mode mesh does not encrypt them. If `unknown` rises with the verdict `passed`: nodes without a working tunnel, see `ropewalk_agent_peer_states`",
	"ropewalk_agent_peer_states":                     "if `lost` is above 0: `status.stalePeers` of the RopewalkNode names them; let UDP pass between the nodes",
	"ropewalk_agent_drift_total":                     "if it rises: find the program that removes routes, rules, eBPF programs or peers. The agent's log has the times (`repaired changes that another program made on the host`)",
	"ropewalk_agent_external_peers":                  "compare it with the RopewalkPeers that select the node (`kubectl get ropewalkpeers`)",
	"ropewalk_agent_external_peers_refused":          "if not 0: the condition `Accepted` of the RopewalkPeers has the reason (`kubectl get ropewalkpeers`)",
	"ropewalk_agent_foreign_writes_total":            "if it rises: the condition `SoleWriter` names the other program. Look for a second machine with the node's name; else the node's token is known to others: delete its pod and find out how",
	"ropewalk_agent_node_routes":                     "if 0 with `nodeEncryption`: `ropewalk mesh check` has the reason (check `encryption`), such as a kernel before Linux 6.1",
	"ropewalk_agent_nodes_without_tunnel":            "if it stays above 0: `ropewalk mesh check` names the nodes (checks `agent` and `key`). Start an agent there, or exclude them (`mesh.exclude`)",
	"ropewalk_agent_peers":                           "if it is less than on other nodes: `ropewalk mesh check` (check `peers`)",
	"ropewalk_agent_plaintext_dropped_packets_total": "if it rises: `tcpdump` on the network device of the node shows the source address. On that node, look for a missing rule (`ip rule list priority 8282`), or one in front of it",
	"ropewalk_agent_problems":                        "if it stays above 0: the log of the agent has each node and reason once (`peer node has a problem`); `ropewalk mesh check`",
	"ropewalk_agent_reconcile_failures_total":        "if it rises: the condition `Ready` (`kubectl get ropewalknodes`) and the agent's log (`reconcile failed, retrying`) have the reason",
	"ropewalk_agent_reconciles_total":                "if it does not rise for ten minutes: the log of the agent has the reason",
	"ropewalk_agent_refused_prefixes":                "if not 0: the log of the agent has each node and reason once (`peer node has a problem`). No two nodes may have the same pods or addresses, and no node a Service's address",
	"ropewalk_agent_spreads_to":                      "if it is less than `ropewalk_agent_peers`: `ropewalk mesh check` names the nodes (check `spread`)",
}

// metricAlerts returns the alerts that use each metric in their expressions.
func metricAlerts(t *testing.T) map[string][]string {
	t.Helper()
	paths, err := filepath.Glob(rulesPaths)
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	var text []byte
	for _, path := range paths {
		rules, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, rules...)
	}
	alerts := map[string][]string{}
	for _, rule := range regexp.MustCompile(`(?s)alert: (\w+)\n(.*?)\n +labels:`).FindAllStringSubmatch(string(text), -1) {
		for _, name := range regexp.MustCompile(`\bropewalk_agent_\w+`).FindAllString(rule[2], -1) {
			alerts[name] = append(alerts[name], "`"+rule[1]+"`")
		}
	}
	return alerts
}

func TestDocumentationListsAgentMetrics(t *testing.T) {
	var s Stats
	s.filtering.Store(true)
	seen := seenNow(func() (proof.Summary, meshmode.GuardCounts) {
		return proof.Summary{}, meshmode.GuardCounts{Known: true}
	})
	s.seen.Store(&seen)
	s.takesPart.Store(true)
	s.conditions.Store(&[]metav1.Condition{{Type: v1alpha1.ConditionReady}})
	families, err := newRegistry(&s).Gather()
	if err != nil {
		t.Fatal(err)
	}
	alerts, documented := metricAlerts(t), 0
	var b strings.Builder
	b.WriteString("| metric | type | meaning | alert | action |\n| --- | --- | --- | --- | --- |\n")
	for _, f := range families {
		name := f.GetName()
		if !strings.HasPrefix(name, "ropewalk_agent_") {
			continue
		}
		action, ok := operatorActions[name]
		if !ok {
			t.Errorf("%s: got no action of an operator, want one", name)
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		shown := name
		if len(labels) > 0 {
			shown += "{" + strings.Join(labels, ",") + "}"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", shown, strings.ToLower(f.GetType().String()), f.GetHelp(), strings.Join(slices.Compact(alerts[name]), ", "), action)
		delete(alerts, name)
		documented++
	}
	if documented != len(operatorActions) {
		t.Errorf("got %d metrics, want %d, which have actions", documented, len(operatorActions))
	}
	if len(alerts) != 0 {
		t.Errorf("got alerts on unknown metrics %v, want none", alerts)
	}
	golden.CheckSection(t, docPath, docBegin, docEnd, b.String())
}
