// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the agent's API: what administrators ask of a node, and what each node's agent tells the others.
// The custom resource definition in deploy/crd and the copying methods are generated from it.
//
// +kubebuilder:object:generate=true
// +groupName=ropewalk.io
package v1alpha1

//go:generate go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0 object:headerFile=header.txt crd:headerFile=header_yaml.txt paths=. output:crd:dir=../../../deploy/crd
