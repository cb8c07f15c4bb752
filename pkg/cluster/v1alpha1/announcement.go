// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RopewalkAnnouncement has the facts of one node that the agents of all others need, and nothing that changes with other nodes. It has the Node's
// name and is owned by the Node. Its agent writes it, and all agents watch all of them. It never holds a secret.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=rwa,categories=ropewalk
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Endpoint",type=string,JSONPath=`.spec.endpoints[0]`
// +kubebuilder:printcolumn:name="Gathers",type=boolean,JSONPath=`.spec.gathers`
// +kubebuilder:printcolumn:name="Key",type=string,JSONPath=`.spec.publicKey`
// +kubebuilder:printcolumn:name="MTU",type=integer,JSONPath=`.spec.mtu`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RopewalkAnnouncement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Facts, by the node's agent. An empty mode says that the node has no agent any more.
	// +optional
	Spec AnnouncementSpec `json:"spec,omitempty"`
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

// AnnouncementSpec has the facts of a node.
//
// +kubebuilder:validation:XValidation:rule="!has(self.nextPublicKey) || !has(self.publicKey) || self.nextPublicKey != self.publicKey",message="nextPublicKey must differ from publicKey"
type AnnouncementSpec struct {
	// Mode of the agent.
	// +optional
	Mode Mode `json:"mode,omitempty"`

	// PublicKey of the node's tunnel, in mesh mode.
	// +optional
	PublicKey PublicKey `json:"publicKey,omitempty"`

	// NextPublicKey is the node's future key. During a key change, other nodes accept it beside PublicKey.
	// +optional
	NextPublicKey PublicKey `json:"nextPublicKey,omitempty"`

	// Endpoints of the tunnel, the preferred one first. Other nodes ignore endpoints that are no
	// addresses of the node.
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

	// Plans are the source ports that other nodes should use towards this one, out of all ports
	// that they spread over. Each flow then takes a receive queue of its own. A node that cannot
	// use all ports of a plan ignores the plan.
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

	// Writer is the process of the agent that wrote the object, by a random name. A second one writes in place of the node's agent.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Writer string `json:"writer,omitempty"`
}
