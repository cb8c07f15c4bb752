// SPDX-License-Identifier: Apache-2.0

// Package cluster tests the Kubernetes agent in a whole cluster on one machine. The cluster has
// etcd, API server, controller manager, scheduler, kubelets and kube-proxies of one Kubernetes
// version, containerd and CNI plugins, and the released image. Each node has a network, a mount
// and a PID namespace of its own. The commands come from docs/kubernetes/install.md. `make
// test-cluster` runs it.
//
// TestCluster is the place to begin: its steps share one cluster and run in order. The tests TestClusterWith… have further clusters, with other network
// plugins and IP versions; `make ci` leaves them out (SKIP_CLUSTERS), and `make ci-full` runs them.
package cluster
