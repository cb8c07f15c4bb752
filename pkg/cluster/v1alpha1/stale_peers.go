// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// StalePeers are other nodes that do not answer this node's handshakes.
type StalePeers struct {
	// Count is their number.
	// +kubebuilder:validation:Minimum=0
	Count int32 `json:"count"`

	// Nodes are their names in ascending order. The list is cut at its maximum length.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=253
	Nodes []string `json:"nodes,omitempty"`
}

// MaxStaleNodes is the maximum length of StalePeers.Nodes.
const MaxStaleNodes = 10
