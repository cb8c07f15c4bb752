// SPDX-License-Identifier: Apache-2.0

// Package flannel tests `ropewalk spread attach` in front of flannel's wireguard backend, as it is
// in a cluster. Flannel's own code creates and configures a tunnel between two nodes, and each
// node has a pod. It is a module of its own, because nothing else needs flannel.
//
// The command flanneld runs other backends, on the nodes of test/kube/cluster.
//
// The test needs in-kernel WireGuard. `make test-kernels` runs it in a virtual machine.
package flannel
