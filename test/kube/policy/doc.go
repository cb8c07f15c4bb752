// SPDX-License-Identifier: Apache-2.0

// Package policy is a module of its own for sigs.k8s.io/kube-network-policies, which the cluster's
// test runs. It needs older Kubernetes modules than test/kube.
package policy
