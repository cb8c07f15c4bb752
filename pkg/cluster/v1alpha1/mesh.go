// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RopewalkMesh has the settings of mode mesh for the whole cluster. Administrators write it. There is one, with the name default. It has no status:
// each RopewalkNode says which generation its node has applied, and `ropewalk mesh status` counts them.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=ropewalkmeshes,singular=ropewalkmesh,shortName=rwm,categories=ropewalk
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'default'",message="the one RopewalkMesh of a cluster has the name default"
// +kubebuilder:printcolumn:name="Cleartext",type=string,JSONPath=`.spec.cleartext`
// +kubebuilder:printcolumn:name="Pod CIDRs",type=string,JSONPath=`.spec.podCIDRs`
// +kubebuilder:printcolumn:name="Node Encryption",type=boolean,JSONPath=`.spec.nodeEncryption.enabled`
// +kubebuilder:printcolumn:name="Generation",type=integer,JSONPath=`.metadata.generation`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RopewalkMesh struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is written by administrators. An empty one is a spec: a deleted entry ends its effect,
	// for agents that run and for agents that start.
	// +optional
	// +kubebuilder:default={}
	Spec MeshSpec `json:"spec,omitempty"`
}

// MeshName is the name of the RopewalkMesh.
const MeshName = "default"

// MeshSpec has the settings of the cluster.
//
// +kubebuilder:validation:XValidation:rule="has(self.podCIDRs) && size(self.podCIDRs) > 0 || (!has(self.cleartext) || self.cleartext != 'Never') && (!has(self.nodeEncryption) || !has(self.nodeEncryption.enabled) || !self.nodeEncryption.enabled)",message="cleartext Never and nodeEncryption need podCIDRs: traffic for unknown pods would leave unencrypted"
// +kubebuilder:validation:XValidation:rule="!has(self.podCIDRs) || !has(self.serviceCIDRs) || self.podCIDRs.all(p, self.serviceCIDRs.all(s, !cidr(p).containsCIDR(cidr(s)) && !cidr(s).containsCIDR(cidr(p))))",message="podCIDRs and serviceCIDRs must not overlap"
// +kubebuilder:validation:XValidation:rule="!has(self.podCIDRs) || !has(self.nodeEncryption) || !has(self.nodeEncryption.nodeCIDRs) || self.podCIDRs.all(p, self.nodeEncryption.nodeCIDRs.all(n, !cidr(p).containsCIDR(cidr(n)) && !cidr(n).containsCIDR(cidr(p))))",message="podCIDRs and nodeCIDRs must not overlap"
// +kubebuilder:validation:XValidation:rule="!has(self.serviceCIDRs) || !has(self.nodeEncryption) || !has(self.nodeEncryption.nodeCIDRs) || self.serviceCIDRs.all(s, self.nodeEncryption.nodeCIDRs.all(n, !cidr(s).containsCIDR(cidr(n)) && !cidr(n).containsCIDR(cidr(s))))",message="serviceCIDRs and nodeCIDRs must not overlap"
type MeshSpec struct {
	// Cleartext says when traffic for pods of nodes that are no peers may leave unencrypted.
	// +optional
	// +kubebuilder:default=Auto
	Cleartext Cleartext `json:"cleartext,omitempty"`

	// PodCIDRs are the prefixes of the cluster's pods. No node may have pods outside of them, and traffic for unknown nodes within them is dropped
	// where cleartext is refused.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	PodCIDRs []CIDR `json:"podCIDRs,omitempty"`

	// ServiceCIDRs are the prefixes of the cluster's Services. A RopewalkPeer with allowed IPs in them is refused.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	ServiceCIDRs []CIDR `json:"serviceCIDRs,omitempty"`

	// NodeEncryption is for traffic to the InternalIPs of other nodes, from nodes and from pods.
	// +optional
	NodeEncryption NodeEncryption `json:"nodeEncryption,omitempty,omitzero"`

	// PostQuantum says whether the tunnel's sessions use keys of post-quantum exchanges: Auto with peers that take part, Required: no data without. A
	// RopewalkPeer may have another policy. Without one, another WireGuard gets no data then. Without a value it is the engine's default.
	// +optional
	PostQuantum PostQuantum `json:"postQuantum,omitempty"`

	// Exclude has the nodes that take no part: they have no tunnel, and traffic for their pods is not encrypted. Nothing else excludes a node.
	// +optional
	Exclude Exclude `json:"exclude,omitempty,omitzero"`

	// Pools have settings for groups of nodes. The first pool that selects a node applies to it,
	// as a whole.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Pools []Pool `json:"pools,omitempty"`
}

// Cleartext says when traffic for pods of nodes that are no peers may leave unencrypted.
//
// +kubebuilder:validation:Enum=Always;Auto;Never
type Cleartext string

// The settings.
const (
	CleartextNever  Cleartext = "Never"  // it is dropped, in both directions
	CleartextAuto   Cleartext = "Auto"   // until all nodes of the cluster were proved to reach each other through the tunnel
	CleartextAlways Cleartext = "Always" // for nodes that are moving into mode mesh or out of it
)

// PostQuantum says whether sessions use keys of post-quantum exchanges.
//
// +kubebuilder:validation:Enum=Never;Auto;Required
type PostQuantum string

// The settings. "Off" would be a boolean in YAML.
const (
	PostQuantumNever    PostQuantum = "Never"
	PostQuantumAuto     PostQuantum = "Auto"
	PostQuantumRequired PostQuantum = "Required"
)

// NodeEncryption has the settings for traffic between nodes.
//
// +kubebuilder:validation:XValidation:rule="!has(self.enabled) || !self.enabled || has(self.nodeCIDRs) && size(self.nodeCIDRs) > 0",message="nodeEncryption needs nodeCIDRs: without them, a node could attract traffic to any address"
type NodeEncryption struct {
	// Enabled encrypts it, except the path between nodes and the API server.
	// +optional
	Enabled bool `json:"enabled,omitempty"`

	// NodeCIDRs are the prefixes of the nodes' InternalIPs. Traffic to other addresses is not encrypted.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	NodeCIDRs []CIDR `json:"nodeCIDRs,omitempty"`

	// ClearPorts are TCP and UDP ports of nodes that stay unencrypted.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	ClearPorts []ClearPort `json:"clearPorts,omitempty"`

	// ClearNodes selects nodes that do not encrypt traffic between nodes; none without it.
	// +optional
	ClearNodes *NodeSelector `json:"clearNodes,omitempty"`
}

// ClearPort is an address or a prefix, and a port: 192.0.2.10:8443, 192.0.2.0/24:53, [2001:db8::/64]:53.
//
// +kubebuilder:validation:MaxLength=51
// +kubebuilder:validation:Pattern=`^([0-9.]+(/[0-9]{1,2})?|\[[0-9a-fA-F:]+(/[0-9]{1,3})?\]):[1-9][0-9]{0,4}$`
// +kubebuilder:validation:XValidation:rule="int(self.substring(self.lastIndexOf(':') + 1)) <= 65535",message="want a port from 1 to 65535"
// +kubebuilder:validation:XValidation:rule="self.startsWith('[') ? isIP(self.substring(1, self.lastIndexOf(']'))) || isCIDR(self.substring(1, self.lastIndexOf(']'))) : isIP(self.substring(0, self.lastIndexOf(':'))) || isCIDR(self.substring(0, self.lastIndexOf(':')))",message="want an address or a prefix, and a port"
type ClearPort string

// Exclude selects nodes.
type Exclude struct {
	// NodeNames are the names of nodes.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MaxLength=253
	NodeNames []string `json:"nodeNames,omitempty"`

	// NodeSelector selects nodes by labels that a kubelet cannot set (admission plugin NodeRestriction): no node excludes itself.
	// +optional
	// +kubebuilder:validation:XValidation:rule="has(self.matchLabels) && size(self.matchLabels) > 0 || has(self.matchExpressions) && size(self.matchExpressions) > 0",message="an empty selector would exclude all nodes"
	// +kubebuilder:validation:XValidation:rule="(!has(self.matchLabels) || self.matchLabels.all(k, k.startsWith('node-restriction.kubernetes.io/'))) && (!has(self.matchExpressions) || self.matchExpressions.all(e, e.key.startsWith('node-restriction.kubernetes.io/') && e.operator in ['In', 'Exists']))",message="want keys node-restriction.kubernetes.io/..., and operators In or Exists: other labels a kubelet can set, or leave out"
	NodeSelector *NodeSelector `json:"nodeSelector,omitempty"`
}

// RestrictedPrefix begins the keys of labels that kubelets cannot set.
const RestrictedPrefix = "node-restriction.kubernetes.io/"

// Pool has the settings of a group of nodes.
type Pool struct {
	// NodeSelector selects the nodes; all of them without it.
	// +optional
	NodeSelector NodeSelector `json:"nodeSelector,omitempty,omitzero"`

	// Port is the UDP port that the tunnel listens on; 51820 without it. The port of a RopewalkNode precedes.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// MTU of the tunnel in bytes of the inner packet, instead of the one derived from the node's interface.
	// +optional
	// +kubebuilder:validation:Minimum=1280
	// +kubebuilder:validation:Maximum=65535
	MTU int32 `json:"mtu,omitempty"`

	// PersistentKeepalive is the interval of keepalive messages to other nodes in seconds; 0: none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	PersistentKeepalive int32 `json:"persistentKeepalive,omitempty"`

	// Underlay is the path of data messages: UDP sockets, AF_XDP sockets where available, or the faster one.
	// +optional
	Underlay Underlay `json:"underlay,omitempty"`
}

// Underlay is the path of data messages.
//
// +kubebuilder:validation:Enum=auto;udp;xdp
type Underlay string
