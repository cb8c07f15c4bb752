// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RopewalkNode has the settings of one node, and its agent's statements about it for people. It
// has the Node's name and is owned by the Node. No agent watches another node's: a partition
// changes the conditions of all nodes at once. It never holds a secret.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=rwn,categories=ropewalk
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Peers",type=integer,JSONPath=`.status.peers`
// +kubebuilder:printcolumn:name="Spreads To",type=integer,JSONPath=`.status.spreadsTo`
// +kubebuilder:printcolumn:name="Stale",type=integer,JSONPath=`.status.stalePeers.count`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Tunnel",type=string,JSONPath=`.status.conditions[?(@.type=="TunnelUp")].status`
// +kubebuilder:printcolumn:name="Reachable",type=string,JSONPath=`.status.conditions[?(@.type=="PeersReachable")].status`
// +kubebuilder:printcolumn:name="Encrypted",type=string,JSONPath=`.status.conditions[?(@.type=="Encrypted")].status`
// +kubebuilder:printcolumn:name="Strict",type=string,JSONPath=`.status.conditions[?(@.type=="Strict")].status`
// +kubebuilder:printcolumn:name="Mesh",type=integer,JSONPath=`.status.meshGeneration`,priority=1
// +kubebuilder:printcolumn:name="Encryption",type=string,JSONPath=`.status.conditions[?(@.type=="Encrypted")].message`,priority=1
// +kubebuilder:printcolumn:name="Post-Quantum",type=string,JSONPath=`.status.conditions[?(@.type=="PostQuantum")].reason`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.agentVersion`,priority=1
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

// NodeSpec has the settings by administrators.
type NodeSpec struct {
	// Endpoint is the IP address at which other nodes reach this one, instead of its internal addresses.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="want an IP address without a zone"
	Endpoint string `json:"endpoint,omitempty"`

	// Port is the UDP port that the tunnel listens on, instead of the port of the node's pool.
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

// NodeStatus is the status published by the node's agent.
type NodeStatus struct {
	// ObservedGeneration is the generation of the spec that the status reflects.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// KeyGeneration is the generation of the key that the node has announced.
	// +optional
	KeyGeneration int64 `json:"keyGeneration,omitempty"`

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

	// MeshUID is the UID of that RopewalkMesh. A mesh that is deleted and created again begins
	// with generation 1.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	MeshUID string `json:"meshUID,omitempty"`

	// Writer is the process of the agent that wrote the status, by a random name. A second one writes in place of the node's agent.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Writer string `json:"writer,omitempty"`

	// AgentVersion is the version of the agent.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	AgentVersion string `json:"agentVersion,omitempty"`

	// KernelVersion is the node's, as printed by uname -r.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	KernelVersion string `json:"kernelVersion,omitempty"`

	// Conditions: Ready reports whether the last reconcile succeeded, and SoleWriter that no other
	// program writes the node's objects. AdmissionPolicy reports that the API server keeps agents
	// from writing other nodes' objects. In mode mesh, TunnelUp, PeersReachable, Encrypted, Strict
	// and PostQuantum say what was observed of the tunnel and of the packets that leave the node
	// (docs/dev/mesh.md).
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// The conditions of both modes.
const (
	// ConditionReady reports whether the agent's last reconcile succeeded. Its message has the error or warnings.
	ConditionReady = "Ready"
	// ConditionSoleWriter is False while another program writes this node's objects.
	ConditionSoleWriter = "SoleWriter"
	// ConditionAdmissionPolicy is False if an agent may write another node's objects.
	ConditionAdmissionPolicy = "AdmissionPolicy"
)
