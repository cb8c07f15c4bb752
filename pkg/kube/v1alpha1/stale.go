// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// StalePeers are other nodes that do not answer this node's handshakes.
type StalePeers struct {
	// Count is how many there are.
	// +kubebuilder:validation:Minimum=0
	Count int32 `json:"count"`

	// Nodes are their names in ascending order, the first ones where there are more than fit.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=253
	Nodes []string `json:"nodes,omitempty"`
}

// MaxStaleNodes is how many names StalePeers has at most.
const MaxStaleNodes = 10
