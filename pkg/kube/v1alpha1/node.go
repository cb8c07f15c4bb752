// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RopewalkNode is one node of the cluster, by the node's name, and owned by it. An agent writes its own node's status
// and reads all. No secret is ever in it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=rwn,categories=ropewalk
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.status.mode`
// +kubebuilder:printcolumn:name="Endpoint",type=string,JSONPath=`.status.endpoints[0]`
// +kubebuilder:printcolumn:name="Gathers",type=boolean,JSONPath=`.status.gathers`
// +kubebuilder:printcolumn:name="Peers",type=integer,JSONPath=`.status.peers`
// +kubebuilder:printcolumn:name="Spreads To",type=integer,JSONPath=`.status.spreadsTo`
// +kubebuilder:printcolumn:name="Stale",type=integer,JSONPath=`.status.stalePeers.count`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="MTU",type=integer,JSONPath=`.status.mtu`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.agentVersion`,priority=1
// +kubebuilder:printcolumn:name="Key",type=string,JSONPath=`.status.publicKey`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RopewalkNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What administrators ask for. Everything left out is found out by the agent.
	// +optional
	Spec NodeSpec `json:"spec,omitempty"`
	// What the node's agent tells.
	// +optional
	Status NodeStatus `json:"status,omitempty"`
}

// RopewalkNodeList is a list of nodes.
//
// +kubebuilder:object:root=true
type RopewalkNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []RopewalkNode `json:"items"`
}

// Mode is what the agent does on a node.
//
// +kubebuilder:validation:Enum=spread;mesh
type Mode string

// The modes.
const (
	// ModeSpread spreads and gathers for the WireGuard that the cluster has.
	ModeSpread Mode = "spread"
	// ModeMesh is the cluster's WireGuard.
	ModeMesh Mode = "mesh"
)

// NodeSpec is what administrators ask for.
type NodeSpec struct {
	// Mode instead of the one that the agent was started with.
	// +optional
	Mode Mode `json:"mode,omitempty"`

	// OptOut keeps the node out: it neither spreads nor has a tunnel, and others treat it as if it had no agent.
	// +optional
	OptOut bool `json:"optOut,omitempty"`

	// Endpoint is the IP address at which others reach the node, instead of its internal ones.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="want an IP address without a zone"
	Endpoint string `json:"endpoint,omitempty"`

	// Port is the UDP port that the tunnel listens on.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// MTU of the tunnel in bytes of inner packet, instead of what fits the device that leads to the peers.
	// +optional
	// +kubebuilder:validation:Minimum=576
	// +kubebuilder:validation:Maximum=65535
	MTU int32 `json:"mtu,omitempty"`

	// KeyGeneration asks for a new key when it is raised above status.keyGeneration.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:XValidation:rule="self >= oldSelf",message="a generation of keys never comes back"
	KeyGeneration int64 `json:"keyGeneration,omitempty"`
}

// PublicKey is one of WireGuard in base64.
//
// +kubebuilder:validation:Pattern=`^[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=$`
type PublicKey string

// Endpoint is an address and a UDP port: 192.0.2.1:51820, [2001:db8::1]:51820.
//
// +kubebuilder:validation:MaxLength=47
// +kubebuilder:validation:Pattern=`^([0-9.]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}$`
type Endpoint string

// CIDR is a prefix of addresses.
//
// +kubebuilder:validation:MaxLength=49
// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="want a prefix, such as 10.244.0.0/24"
type CIDR string

// Ports is a range of UDP ports, both ends included.
//
// +kubebuilder:validation:XValidation:rule="self.first <= self.last",message="the range ends before it begins"
type Ports struct {
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65535
	First int32 `json:"first"`
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65535
	Last int32 `json:"last"`
}

// Port is a UDP port that nobody needs privileges for.
//
// +kubebuilder:validation:Minimum=1024
// +kubebuilder:validation:Maximum=65535
type Port int32

// IPFamily is a version of IP.
//
// +kubebuilder:validation:Enum=IPv4;IPv6
type IPFamily string

// The versions of IP.
const (
	IPv4 IPFamily = "IPv4"
	IPv6 IPFamily = "IPv6"
)

// Plan is what those do who spread towards the node over one version of IP.
//
// +kubebuilder:validation:XValidation:rule="self.ports.all(p, self.ports.exists_one(q, q == p))",message="a port is named twice"
type Plan struct {
	// IPFamily of the endpoints that it is for.
	IPFamily IPFamily `json:"ipFamily"`
	// Ports are source ports, in order: neighbours arrive on different receive queues of the node, whichever node sends.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Ports []Port `json:"ports"`
}

// NodeStatus is what the node's agent tells.
//
// +kubebuilder:validation:XValidation:rule="!has(self.nextPublicKey) || !has(self.publicKey) || self.nextPublicKey != self.publicKey",message="the next key is another one"
type NodeStatus struct {
	// ObservedGeneration is the spec's that the rest is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Mode that the agent is in.
	// +optional
	Mode Mode `json:"mode,omitempty"`

	// PublicKey of the node's tunnel, in mesh mode.
	// +optional
	PublicKey PublicKey `json:"publicKey,omitempty"`

	// KeyGeneration is that of PublicKey.
	// +optional
	KeyGeneration int64 `json:"keyGeneration,omitempty"`

	// NextPublicKey is accepted already, beside PublicKey, while the key changes.
	// +optional
	NextPublicKey PublicKey `json:"nextPublicKey,omitempty"`

	// Endpoints at which the tunnel is reached, the best first. Others believe those that are addresses of the node.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Endpoints []Endpoint `json:"endpoints,omitempty"`

	// PodCIDRs of the node, as the agent sees them. Others go by the node's own.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	PodCIDRs []CIDR `json:"podCIDRs,omitempty"`

	// MTU of the tunnel, in bytes of inner packet.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	MTU int32 `json:"mtu,omitempty"`

	// SpreadPorts are the source ports that the node spreads over.
	// +optional
	SpreadPorts *Ports `json:"spreadPorts,omitempty"`

	// Plans are the source ports that others should use towards this node, out of those that they spread over, so that their
	// flows take one of its receive queues each. Who cannot use all ports of a plan uses none of it.
	// +optional
	// +listType=map
	// +listMapKey=ipFamily
	// +kubebuilder:validation:MaxItems=2
	Plans []Plan `json:"plans,omitempty"`

	// Gathers tells that what comes from other nodes' spread ports is gathered: they may spread towards this one.
	// +optional
	Gathers bool `json:"gathers,omitempty"`

	// Peers is how many other nodes this one knows as peers.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Peers int32 `json:"peers,omitempty"`

	// SpreadsTo is how many other nodes this one spreads towards.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SpreadsTo int32 `json:"spreadsTo,omitempty"`

	// StalePeers are those that do not answer this node's handshakes. It changes at most every few minutes.
	// +optional
	StalePeers *StalePeers `json:"stalePeers,omitempty"`

	// AgentVersion is that of the agent.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	AgentVersion string `json:"agentVersion,omitempty"`

	// KernelVersion is the node's, as uname -r says.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	KernelVersion string `json:"kernelVersion,omitempty"`

	// Conditions: Ready tells whether all is as it should be.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ConditionReady tells whether all is as it should be on the node; its message says what is not.
const ConditionReady = "Ready"
