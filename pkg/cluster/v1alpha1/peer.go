// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RopewalkPeer is a WireGuard peer that is no node of the cluster: a laptop, a router, a node of another cluster. Administrators
// write its spec. Nodes in mode mesh have it as a peer beside the other nodes. It never holds a secret.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=rwp,categories=ropewalk
// +kubebuilder:subresource:status
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name must have 63 characters at most"
// +kubebuilder:printcolumn:name="Allowed IPs",type=string,JSONPath=`.spec.allowedIPs`
// +kubebuilder:printcolumn:name="Endpoint",type=string,JSONPath=`.spec.endpoint`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].message`
// +kubebuilder:printcolumn:name="Key",type=string,JSONPath=`.spec.publicKey`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RopewalkPeer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is written by administrators.
	Spec PeerSpec `json:"spec"`
	// Status is written by one of the agents.
	// +optional
	Status PeerStatus `json:"status,omitempty,omitzero"`
}

// PeerSpec describes the peer.
type PeerSpec struct {
	// PublicKey of the peer.
	PublicKey PublicKey `json:"publicKey"`

	// AllowedIPs are the peer's addresses inside the tunnel. The nodes route them into the tunnel, and accept packets with these
	// sources from the peer only. They must not overlap addresses of the cluster.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	AllowedIPs []PeerPrefix `json:"allowedIPs"`

	// Endpoint at which the nodes reach the peer: an IP address or a host name, and a port. Without one, the peer begins.
	// +optional
	Endpoint PeerEndpoint `json:"endpoint,omitempty"`

	// PersistentKeepalive is the interval of keepalive messages in seconds, for a node behind a NAT; 0: none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	PersistentKeepalive int32 `json:"persistentKeepalive,omitempty"`

	// PostQuantum says whether the peer's sessions use keys of post-quantum exchanges: Never for another WireGuard, Auto if the peer takes part,
	// Required: no data without. Without a value, the RopewalkMesh decides.
	// +optional
	PostQuantum PostQuantum `json:"postQuantum,omitempty"`

	// NodeSelector selects the nodes that have the peer. Without it, all nodes in mode mesh have it.
	// +optional
	NodeSelector NodeSelector `json:"nodeSelector,omitempty,omitzero"`
}

// PeerPrefix is an IP prefix without host bits.
//
// +kubebuilder:validation:MaxLength=43
// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="want a prefix, such as 192.0.2.10/32"
// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || cidr(self) == cidr(self).masked()",message="the bits after the prefix length must be 0"
// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || cidr(self).prefixLength() >= (cidr(self).ip().family() == 4 ? 8 : 16)",message="want a prefix length of at least 8 (IPv4) or 16 (IPv6)"
type PeerPrefix string

// PeerEndpoint is a host and a UDP port: vpn.example.org:51820, 192.0.2.1:51820, [2001:db8::1]:51820.
//
// +kubebuilder:validation:MaxLength=259
// +kubebuilder:validation:Pattern=`^([a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?|\[[0-9a-fA-F:.]+\]):[1-9][0-9]{0,4}$`
// +kubebuilder:validation:XValidation:rule="int(self.substring(self.lastIndexOf(':') + 1)) <= 65535",message="want a port from 1 to 65535"
// +kubebuilder:validation:XValidation:rule="!self.startsWith('[') || isIP(self.substring(1, self.lastIndexOf(']')))",message="want an IPv6 address in brackets"
// +kubebuilder:validation:XValidation:rule="!self.matches('^[0-9.]+:') || isIP(self.substring(0, self.lastIndexOf(':')))",message="want an IP address or a host name"
type PeerEndpoint string

// PeerStatus has the findings of one of the agents. The agents that write it read it to know
// whether it differs. None decides by it.
type PeerStatus struct {
	// Conditions: Accepted reports whether the nodes have the peer, and which.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ConditionAccepted reports whether the selected nodes have the peer. Its message has the nodes, or why none has it.
const ConditionAccepted = "Accepted"

// Reasons of ConditionAccepted.
const (
	ReasonAccepted = "Accepted" // it is a peer of the selected nodes
	ReasonInvalid  = "Invalid"  // no device accepts the spec
	ReasonConflict = "Conflict" // the cluster or an older RopewalkPeer has the key or a prefix
)
