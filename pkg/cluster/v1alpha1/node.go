// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RopewalkNode is the agent's view of one node. It has the Node's name and is owned by the Node. An agent writes its own
// node's status and reads all others. It never holds a secret.
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
// +kubebuilder:printcolumn:name="Reachable",type=string,JSONPath=`.status.conditions[?(@.type=="PeersReachable")].status`
// +kubebuilder:printcolumn:name="Encrypted",type=string,JSONPath=`.status.conditions[?(@.type=="Encrypted")].status`
// +kubebuilder:printcolumn:name="Strict",type=string,JSONPath=`.status.conditions[?(@.type=="Strict")].status`
// +kubebuilder:printcolumn:name="Mesh",type=integer,JSONPath=`.status.meshGeneration`,priority=1
// +kubebuilder:printcolumn:name="MTU",type=integer,JSONPath=`.status.mtu`,priority=1
// +kubebuilder:printcolumn:name="Encryption",type=string,JSONPath=`.status.conditions[?(@.type=="Encrypted")].message`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.agentVersion`,priority=1
// +kubebuilder:printcolumn:name="Key",type=string,JSONPath=`.status.publicKey`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RopewalkNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Settings by administrators. The agent determines everything that is left out.
	// +optional
	Spec NodeSpec `json:"spec,omitempty"`
	// Status published by the node's agent.
	// +optional
	Status NodeStatus `json:"status,omitempty"`
}

// RopewalkNodeList is a list of RopewalkNodes.
//
// +kubebuilder:object:root=true
type RopewalkNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []RopewalkNode `json:"items"`
}

// Mode is the agent's mode of operation on a node.
//
// +kubebuilder:validation:Enum=spread;mesh
type Mode string

// The modes.
const (
	// ModeSpread spreads and gathers for the WireGuard of the cluster's CNI.
	ModeSpread Mode = "spread"
	// ModeMesh runs ropewalk as the cluster's WireGuard.
	ModeMesh Mode = "mesh"
)

// NodeSpec has the settings by administrators.
type NodeSpec struct {
	// Endpoint is the IP address at which other nodes reach this one, instead of its internal addresses.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="want an IP address without a zone"
	Endpoint string `json:"endpoint,omitempty"`

	// Port is the UDP port that the tunnel listens on, instead of that of the node's pool.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// KeyGeneration requests a new key when it is raised above status.keyGeneration.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:XValidation:rule="self >= oldSelf",message="keyGeneration must not decrease"
	KeyGeneration int64 `json:"keyGeneration,omitempty"`
}

// PublicKey is a WireGuard public key in base64.
//
// +kubebuilder:validation:Pattern=`^[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=$`
type PublicKey string

// Endpoint is an address and a UDP port: 192.0.2.1:51820, [2001:db8::1]:51820.
//
// +kubebuilder:validation:MaxLength=47
// +kubebuilder:validation:Pattern=`^([0-9.]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}$`
type Endpoint string

// CIDR is an IP prefix.
//
// +kubebuilder:validation:MaxLength=49
// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="want a prefix, such as 10.244.0.0/24"
type CIDR string

// Ports is a range of UDP ports, both ends included.
//
// +kubebuilder:validation:XValidation:rule="self.first <= self.last",message="first must not be greater than last"
type Ports struct {
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65535
	First int32 `json:"first"`
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65535
	Last int32 `json:"last"`
}

// Port is an unprivileged UDP port.
//
// +kubebuilder:validation:Minimum=1024
// +kubebuilder:validation:Maximum=65535
type Port int32

// IPFamily is an IP version.
//
// +kubebuilder:validation:Enum=IPv4;IPv6
type IPFamily string

// The IP families.
const (
	IPv4 IPFamily = "IPv4"
	IPv6 IPFamily = "IPv6"
)

// Plan has the source ports for nodes that spread towards this one over one IP family.
//
// +kubebuilder:validation:XValidation:rule="self.ports.all(p, self.ports.exists_one(q, q == p))",message="ports must be distinct"
type Plan struct {
	// IPFamily of the endpoints that the plan is for.
	IPFamily IPFamily `json:"ipFamily"`
	// Ports are source ports in order: adjacent ones reach different receive queues of this node, for any sender.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Ports []Port `json:"ports"`
}

// NodeStatus is the status published by the node's agent.
//
// +kubebuilder:validation:XValidation:rule="!has(self.nextPublicKey) || !has(self.publicKey) || self.nextPublicKey != self.publicKey",message="nextPublicKey must differ from publicKey"
type NodeStatus struct {
	// ObservedGeneration is the generation of the spec that the status reflects.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Mode of the agent.
	// +optional
	Mode Mode `json:"mode,omitempty"`

	// PublicKey of the node's tunnel, in mesh mode.
	// +optional
	PublicKey PublicKey `json:"publicKey,omitempty"`

	// KeyGeneration is the generation of PublicKey.
	// +optional
	KeyGeneration int64 `json:"keyGeneration,omitempty"`

	// NextPublicKey is the node's future key. During a key change, other nodes accept it beside PublicKey.
	// +optional
	NextPublicKey PublicKey `json:"nextPublicKey,omitempty"`

	// Endpoints of the tunnel, the preferred one first. Other nodes ignore those that are no addresses of the node.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Endpoints []Endpoint `json:"endpoints,omitempty"`

	// PodCIDRs of the node, as its agent sees them. Other nodes read them at the same source.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	PodCIDRs []CIDR `json:"podCIDRs,omitempty"`

	// PodCIDRSource is where the agent reads the nodes' pod prefixes, if not from the Node objects.
	// +optional
	// +kubebuilder:validation:Enum=cilium;calico
	PodCIDRSource string `json:"podCIDRSource,omitempty"`

	// MTU of the tunnel in bytes of the inner packet.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	MTU int32 `json:"mtu,omitempty"`

	// SpreadPorts are the source ports that the node spreads over.
	// +optional
	SpreadPorts *Ports `json:"spreadPorts,omitempty"`

	// Plans are the source ports that other nodes should use towards this one, out of those that they spread over. Each flow
	// then takes a receive queue of its own. A node that cannot use all ports of a plan ignores the plan.
	// +optional
	// +listType=map
	// +listMapKey=ipFamily
	// +kubebuilder:validation:MaxItems=2
	Plans []Plan `json:"plans,omitempty"`

	// Gathers reports that this node gathers packets from other nodes' spread ports, so that they may spread towards it.
	// +optional
	Gathers bool `json:"gathers,omitempty"`

	// EncryptsNodes reports that this node carries traffic to the addresses of other nodes in the tunnel, if they report the same, and
	// accepts theirs.
	// +optional
	EncryptsNodes bool `json:"encryptsNodes,omitempty"`

	// Peers is the number of other nodes that are peers.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Peers int32 `json:"peers,omitempty"`

	// SpreadsTo is the number of other nodes that this one spreads towards.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SpreadsTo int32 `json:"spreadsTo,omitempty"`

	// StalePeers are the peers that answer neither handshakes nor probes of this node.
	// +optional
	StalePeers *StalePeers `json:"stalePeers,omitempty"`

	// StrictSince is since when packets for other nodes' pods do not leave this node in the clear. An agent without its files stays strict by it.
	// +optional
	StrictSince *metav1.Time `json:"strictSince,omitempty"`

	// MeshGeneration is the generation of the RopewalkMesh that the node has applied, in mesh mode.
	// +optional
	MeshGeneration int64 `json:"meshGeneration,omitempty"`

	// MeshUID is the UID of that RopewalkMesh. One that is deleted and created again begins with generation 1.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	MeshUID string `json:"meshUID,omitempty"`

	// AgentVersion is the version of the agent.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	AgentVersion string `json:"agentVersion,omitempty"`

	// KernelVersion is the node's, as printed by uname -r.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	KernelVersion string `json:"kernelVersion,omitempty"`

	// Conditions: Ready reports whether the last reconcile succeeded. In mode mesh, TunnelUp, PeersReachable, Encrypted and Strict say what was
	// observed of the tunnel and of the packets that leave the node (docs/dev/mesh.md).
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ConditionReady reports whether the agent's last reconcile succeeded. Its message has the error or warnings.
const ConditionReady = "Ready"
