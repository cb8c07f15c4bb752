// SPDX-License-Identifier: Apache-2.0

package metrics

// agentPanels are those of the Kubernetes agents, as panels. Of thousands of agents, a panel shows the 20 with the most, or with the least where that is
// the fault. $where stands for the start of label matchers of the selected instances.
var agentPanels = []panel{
	{title: "Agents", kind: "stat", width: 4, queries: []query{{"count(ropewalk_agent_peers$host)", "agents"}}},
	{title: "Condition Ready is not True", kind: "stat", width: 4, queries: []query{{`sum(ropewalk_agent_condition$where,type="Ready",status!="True"})`, "agents"}}},
	{
		title: "Nodes without a tunnel", help: "Mode mesh: their pods' traffic is dropped, or unencrypted.", kind: "stat", width: 4,
		queries: []query{{"max(ropewalk_agent_nodes_without_tunnel$host)", "nodes"}},
	},
	{
		title: "Nodes that allow cleartext", help: "Mode mesh: packets to nodes without a tunnel may leave unencrypted.", kind: "stat", width: 4,
		queries: []query{{"sum(ropewalk_agent_cleartext$host)", "nodes"}},
	},
	{
		title: "Nodes without a guard", help: "Mode mesh: nothing proves that pods' packets are encrypted.", kind: "stat", width: 4,
		queries: []query{{"sum(1 - ropewalk_agent_guarded$host)", "nodes"}},
	},
	{
		title: "Refused prefixes and peers", help: "Prefixes and addresses of nodes, and RopewalkPeers, which are invalid or belong to others.", kind: "stat", width: 4,
		queries: []query{{"max(ropewalk_agent_refused_prefixes$host)", "prefixes"}, {"max(ropewalk_agent_external_peers_refused$host)", "peers"}},
	},

	{
		title: "Conditions that are False", help: "Nodes by type. The messages: kubectl get ropewalknodes -o wide.", width: 12,
		queries: []query{{`sum by (type) (ropewalk_agent_condition$where,status="False"})`, "{{type}}"}},
	},
	{
		title: "Conditions that are Unknown", help: "Nodes by type. Encrypted is Unknown without traffic of pods, Encrypted and Strict without a guard.", width: 12,
		queries: []query{{`sum by (type) (ropewalk_agent_condition$where,status="Unknown"})`, "{{type}}"}},
	},
	{
		title: "Nodes and conditions", help: "Each condition that is False now.", kind: "table", width: 24,
		queries: []query{{`ropewalk_agent_condition$where,status="False"} == 1`, "{{instance}} {{type}}"}},
	},

	{
		title: "Peers by state", help: "Mode mesh, as the nodes observe each other.", width: 8, stack: true,
		queries: []query{{"sum by (state) (ropewalk_agent_peer_states$host)", "{{state}}"}},
	},
	{
		title: "Lost peers", help: "A node that loses all others is cut off. One that all others lose is down.", width: 8,
		queries: []query{{`topk(20, ropewalk_agent_peer_states$where,state="lost"})`, "{{instance}}"}},
	},
	{
		title: "Peers, and nodes spread towards", width: 8,
		queries: []query{{"bottomk(20, ropewalk_agent_peers$host)", "{{instance}} peers"}, {"bottomk(20, ropewalk_agent_spreads_to$host)", "{{instance}} spread"}},
	},

	{
		title: "Guard: packets beside the tunnel", help: "To pods that the tunnel reaches (remote), and does not reach (unknown).", unit: "pps", width: 8,
		queries: []query{{`sum by (class, verdict) (rate(ropewalk_agent_guard_packets_total$where,class!="local"}[$w]))`, "{{class}} {{verdict}}"}},
	},
	{
		title: "Guard: pods' packets in the tunnel", unit: "pps", width: 8,
		queries: []query{{`topk(20, rate(ropewalk_agent_guard_packets_total$where,class="local",verdict="passed"}[$w]))`, "{{instance}}"}},
	},
	{
		title: "Unencrypted packets dropped on arrival", unit: "pps", width: 8,
		queries: []query{{"topk(20, rate(ropewalk_agent_plaintext_dropped_packets_total$host[$w]))", "{{instance}}"}},
	},

	{
		title: "Encryption between nodes", help: "spec.nodeEncryption of the RopewalkMesh.", width: 8,
		queries: []query{{"bottomk(20, ropewalk_agent_node_routes$host)", "{{instance}} addresses"}, {"topk(20, ropewalk_agent_clear_nodes$host)", "{{instance}} peers in the clear"}},
	},
	{title: "RopewalkPeers", width: 8, queries: []query{{"topk(20, ropewalk_agent_external_peers$host)", "{{instance}}"}}},
	{title: "Problems of other nodes", help: "The agent's log has the reasons.", width: 8, queries: []query{{"topk(20, ropewalk_agent_problems$host)", "{{instance}}"}}},

	{
		title: "Reconciles", width: 8, queries: []query{
			{"sum(rate(ropewalk_agent_reconciles_total$host[$w]))", "succeeded or failed later"}, {"sum(rate(ropewalk_agent_reconcile_failures_total$host[$w]))", "failed"},
		},
	},
	{
		title: "Changes of the nodes' networks", help: "Repairs undo changes of other programs.", width: 8, queries: []query{
			{"sum(rate(ropewalk_agent_changes_total$host[$w]))", "changes"}, {"sum(rate(ropewalk_agent_drift_total$host[$w]))", "repairs"},
		},
	},
	{title: "Writes of other programs", width: 8, queries: []query{{"topk(20, rate(ropewalk_agent_foreign_writes_total$host[$w]))", "{{instance}}"}}},

	{
		title: "Spread: programs", help: "Mode spread. 1: attached.", width: 8,
		queries: []query{{"bottomk(20, min by (instance, device, hook) (ropewalk_spread_attached$host))", "{{instance}} {{device}} {{hook}}"}},
	},
	{
		title: "Spread: peers", width: 8,
		queries: []query{{"bottomk(20, ropewalk_spread_peers$host)", "{{instance}} {{device}}"}, {"topk(20, ropewalk_spread_stalled_peers$host)", "{{instance}} {{device}} stalled"}},
	},
	{
		title: "Spread: datagrams by receive queue", unit: "pps", width: 8, stack: true,
		queries: []query{{"sum by (queue) (rate(ropewalk_spread_receive_queue_datagrams_total$host[$w]))", "queue {{queue}}"}},
	},
	{title: "CPU", help: "Seconds per second.", width: 12, queries: []query{{"topk(20, rate(process_cpu_seconds_total$host[$w]) and on (instance) ropewalk_agent_peers$host)", "{{instance}}"}}},
	{title: "Memory", unit: "bytes", width: 12, queries: []query{{"topk(20, process_resident_memory_bytes$host and on (instance) ropewalk_agent_peers$host)", "{{instance}}"}}},
}
