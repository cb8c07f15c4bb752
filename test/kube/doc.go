// SPDX-License-Identifier: Apache-2.0

// Package kube tests the Kubernetes agent against a real API server, which runs with its etcd in the test's process, and with
// real packets. Each node is a network namespace on one bridge, each agent a process in it. It is a module of its own, because
// it needs all of Kubernetes. `make test-kube` runs it.
//
// There is no kubelet and no controller but the garbage collector, in its own test: the tests write the Nodes.
package kube
