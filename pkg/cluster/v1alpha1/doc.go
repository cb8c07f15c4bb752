// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the agent's Kubernetes API: the RopewalkNode custom resource, with the settings of administrators and the
// status that each node's agent publishes to the others, the RopewalkPeer, a peer outside of the cluster, and the RopewalkMesh,
// the settings of mode mesh. The CustomResourceDefinitions in deploy/crd and the DeepCopy methods are generated from it. Begin
// reading in node.go.
//
// +kubebuilder:object:generate=true
// +groupName=ropewalk.io
package v1alpha1

//go:generate go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0 object:headerFile=header.txt crd:headerFile=header_yaml.txt paths=. output:crd:dir=../../../deploy/crd
