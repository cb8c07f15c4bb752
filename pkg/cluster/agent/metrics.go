// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/pkg/cluster/host"
	"github.com/ropewalk/ropewalk/pkg/cluster/proof"
	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/observe/metrics"
)

// collectors returns all of an agent's metrics. They describe none in advance: metrics of spread
// come and go.
func (s *Stats) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		collectorFunc(s.collectCounters), collectorFunc(s.collectPlaintext), collectorFunc(s.collectConditions), collectorFunc(s.collectProofs), collectorFunc(s.collectSpread),
	}
}

// collectorFunc is an unchecked prometheus.Collector.
type collectorFunc func(chan<- prometheus.Metric)

// Describe implements prometheus.Collector.
func (c collectorFunc) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collectorFunc) Collect(ch chan<- prometheus.Metric) { c(ch) }

// collectCounters exports the agent's own metrics.
func (s *Stats) collectCounters(ch chan<- prometheus.Metric) {
	for _, m := range []struct {
		name, help string
		kind       prometheus.ValueType
		value      int64
	}{
		{"reconciles_total", "Reconciles with this node's objects from the API.", prometheus.CounterValue, int64(s.Reconciles.Load())},
		{"reconcile_failures_total", "Reconciles that failed.", prometheus.CounterValue, int64(s.Failures.Load())},
		{"changes_total", "Changes made to the node's network.", prometheus.CounterValue, int64(s.Changes.Load())},
		{"drift_total", "Changes made although the cluster had not changed: another program had changed the host.", prometheus.CounterValue, int64(s.Drift.Load())},
		{
			"foreign_writes_total", "Writes of other programs to the RopewalkNode and RopewalkAnnouncement of this node, of which its agent should be the only writer.",
			prometheus.CounterValue, int64(s.ForeignWrites.Load()),
		},
		{"peers", "Other nodes that are peers.", prometheus.GaugeValue, s.Peers.Load()},
		{"spreads_to", "Other nodes that flows are spread towards.", prometheus.GaugeValue, s.SpreadsTo.Load()},
		{"problems", "Problems with the status of other nodes.", prometheus.GaugeValue, s.Problems.Load()},
		{"external_peers", "RopewalkPeers that this node has as peers, in mode mesh.", prometheus.GaugeValue, s.ExternalPeers.Load()},
		{"external_peers_refused", "RopewalkPeers that no node has as a peer, because they are invalid or conflict.", prometheus.GaugeValue, s.RefusedPeers.Load()},
		{
			"nodes_without_tunnel", "Other nodes that are no peers in mode mesh, and have not opted out: traffic for their pods is dropped, or unencrypted.",
			prometheus.GaugeValue, s.WithoutTunnel.Load(),
		},
		{"cleartext", "1 while traffic for pods of nodes without a tunnel, or with unknown pod prefixes, may leave unencrypted, in mode mesh.", prometheus.GaugeValue, s.Cleartext.Load()},
		{
			"refused_prefixes", "Pod prefixes and addresses of other nodes that are not used, because the cluster or another node has them, in mode mesh: traffic for them is dropped, or unencrypted.",
			prometheus.GaugeValue, s.RefusedPrefixes.Load(),
		},
		{"node_routes", "Addresses of other nodes that traffic reaches through the tunnel (spec.nodeEncryption of the RopewalkMesh).", prometheus.GaugeValue, s.NodeRoutes.Load()},
		{
			"clear_nodes", "Peers to which traffic between nodes is not encrypted, although this node would encrypt it (spec.nodeEncryption of the RopewalkMesh).",
			prometheus.GaugeValue, s.ClearNodes.Load(),
		},
	} {
		desc := prometheus.NewDesc("ropewalk_agent_"+m.name, m.help, nil, nil)
		ch <- prometheus.MustNewConstMetric(desc, m.kind, float64(m.value))
	}
}

var plaintextDesc = prometheus.NewDesc("ropewalk_agent_plaintext_dropped_packets_total",
	"Unencrypted packets with the address of another node's pod, or with nodeEncryption of another node, that did not come out of the tunnel. Absent while they are not dropped.", nil, nil)

// collectPlaintext exports the counter of the filter for unencrypted packets.
func (s *Stats) collectPlaintext(ch chan<- prometheus.Metric) {
	if s.filtering.Load() {
		ch <- prometheus.MustNewConstMetric(plaintextDesc, prometheus.CounterValue, float64(host.PlaintextDropped()))
	}
}

var (
	conditionDesc = prometheus.NewDesc("ropewalk_agent_condition", "1 for the status of each condition that the agent last observed.", []string{"type", "status"}, nil)
	proofDesc     = prometheus.NewDesc("ropewalk_agent_peer_states", "Peers by their observed state, in mode mesh.", []string{"state"}, nil)
	guardedDesc   = prometheus.NewDesc("ropewalk_agent_guarded", "1 while the guard is at all devices by which packets leave the node, in front of other programs, in mode mesh. Absent while the node is excluded.", nil, nil)
	guardDesc     = prometheus.NewDesc("ropewalk_agent_guard_packets_total",
		"Packets to pods of other nodes that left beside the tunnel (passed), or would have (dropped), and packets of pods in the tunnel (local), in mode mesh. The tunnel reaches pods of the class remote, and none of the class unknown.",
		[]string{"class", "verdict"}, nil)
)

// collectConditions exports the conditions of the node's status.
func (s *Stats) collectConditions(ch chan<- prometheus.Metric) {
	all := s.conditions.Load()
	if all == nil {
		return
	}
	for _, c := range *all {
		for _, status := range []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown} {
			ch <- prometheus.MustNewConstMetric(conditionDesc, prometheus.GaugeValue, float64(oneIf(c.Status == status)), c.Type, string(status))
		}
	}
}

// collectProofs exports what was observed in mode mesh.
func (s *Stats) collectProofs(ch chan<- prometheus.Metric) {
	seen := s.seen.Load()
	if seen == nil {
		return
	}
	p, guard := (*seen)()
	for state, n := range map[proof.State]int{proof.Pending: p.Pending, proof.Reachable: p.Reachable, proof.Proven: p.Proven, proof.Lost: p.Lost} {
		ch <- prometheus.MustNewConstMetric(proofDesc, prometheus.GaugeValue, float64(n), strings.ToLower(state.String()))
	}
	if s.takesPart.Load() {
		ch <- prometheus.MustNewConstMetric(guardedDesc, prometheus.GaugeValue, float64(oneIf(guard.InFront)))
	}
	if !guard.Known {
		return
	}
	for class, c := range map[string]*programs.GuardCount{
		"remote": &guard.Beside[programs.GuardClassRemote], "unknown": &guard.Beside[programs.GuardClassUnknown], "local": &guard.Tunneled[programs.GuardClassLocal],
	} {
		ch <- prometheus.MustNewConstMetric(guardDesc, prometheus.CounterValue, float64(c.Passed), class, "passed")
		ch <- prometheus.MustNewConstMetric(guardDesc, prometheus.CounterValue, float64(c.Dropped), class, "dropped")
	}
}

// collectSpread exports the metrics of the attached programs, as `ropewalk spread attach --metrics` does.
func (s *Stats) collectSpread(ch chan<- prometheus.Metric) {
	if source := s.spread.Load(); source != nil {
		metrics.NewSpreadCollector(*source).Collect(ch)
	}
}
