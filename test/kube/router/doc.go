// SPDX-License-Identifier: Apache-2.0

// Package router is a module of its own for kube-router, which the cluster's test runs: only this old version of its module can be had. It has reported
// flaws, and is used for tests only.
package router
