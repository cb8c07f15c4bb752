// SPDX-License-Identifier: Apache-2.0

// Package agent is the Kubernetes agent, one per node. It watches Nodes,
// RopewalkAnnouncements, RopewalkPeers and the RopewalkMesh (v1alpha1). It asks pkg/cluster/mesh
// for the desired state of this node, applies it, and publishes the node's announcement and
// status. It is the only package that imports client-go. Only ropewalk-agent and tests may import
// it, so that the ropewalk binary stays small.
//
// Begin reading in agent.go. Calls run down this list of files, never up (TestCallsRunDownTheFiles):
//   - entry points: agent, cleanup, snapshot, serve, metrics
//   - the reconcile loop: reconcile, restore, mode, taint, intent, publish, definitions, writers, external_status, events, drift, state, triggers
//   - mesh mode: mesh_reconciler, proofs, key_rotation, mesh_engine, handover, endpoint_resolver, peer_tracker, handshakes, background, keyring, keyfile, node_encryption
//   - spread mode: spread_reconciler, port_planner, device_follower, unmatched, egress, tunnel_port
//   - the API: cluster, api_endpoints, external_peers, optional_informer, node_reader, convert, pod_blocks, client, node, node_protobuf, api_dialer
//   - the host: persisted, lock
//   - values: stats, result, conditions, cleartext, config
//
// While the API is unreachable, the last desired state stays in force. The programs of spread mode stay attached while no agent
// runs. In mesh mode, the engine (package engine) runs the tunnel without the agent. The next agent repairs what changed meanwhile
// by its persisted state, until it reaches the API.
//
// Not for other programs: it may change without notice.
package agent
