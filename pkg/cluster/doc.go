// SPDX-License-Identifier: Apache-2.0

// Package cluster groups the packages of the Kubernetes agent.
//
//   - v1alpha1: the API of RopewalkNodes, RopewalkPeers and the RopewalkMesh
//   - mesh: the desired state of a node as a pure function of the cluster's objects; mesh/view and mesh/command show it
//   - engine: a client of the process that runs a node's tunnel in mode mesh
//   - proof: states of peers and conditions of a node, as a pure function of answers and counts
//   - meshmode: runs the proofs of a node
//   - host: routes, rules, the filter of unencrypted packets and the tunnel's addresses of a node
//   - announce: what agents publish for each other, and second writers of it
//   - agent: watches the cluster and applies that state
//   - bundle: collects a cluster's objects, logs and metrics in one file, for a report
//
// It may import every other room; no other room imports it. Begin with agent.Agent and mesh.
package cluster
