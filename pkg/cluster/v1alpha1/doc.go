// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the agent's Kubernetes API. A RopewalkNode has the settings
// of a node, and the status that its agent publishes for people. A RopewalkAnnouncement has the
// facts that the agent publishes for other agents. A RopewalkPeer is a peer outside of the cluster,
// and the RopewalkMesh has the settings of mode mesh. The CustomResourceDefinitions in deploy/crd
// and the DeepCopy methods are generated from it. Begin reading in node.go and announcement.go.
//
// +kubebuilder:object:generate=true
// +groupName=ropewalk.io
//
// Not for other programs: it may change without notice.
package v1alpha1

//go:generate go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0 object:headerFile=header.txt crd:headerFile=header_yaml.txt paths=. output:crd:dir=../../../deploy/crd
