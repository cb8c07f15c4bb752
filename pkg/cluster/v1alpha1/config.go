// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RopewalkConfig has settings for a pool of nodes, selected by labels. Administrators write its spec. It takes precedence over the flags
// of the agents, and the spec of a RopewalkNode over it. Of several that select a node, the one of the highest priority applies, as a whole.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=rwc,categories=ropewalk
// +kubebuilder:subresource:status
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name must have 63 characters at most"
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="Following",type=integer,JSONPath=`.status.followingNodes`
// +kubebuilder:printcolumn:name="Pending",type=integer,JSONPath=`.status.pendingNodes`
// +kubebuilder:printcolumn:name="Refusing",type=integer,JSONPath=`.status.refusingNodes`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Conflict",type=string,JSONPath=`.status.conditions[?(@.type=="Conflict")].status`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RopewalkConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is written by administrators.
	Spec ConfigSpec `json:"spec"`
	// Status is written by one of the agents.
	// +optional
	Status ConfigStatus `json:"status,omitempty"`
}

// RopewalkConfigList is a list of RopewalkConfigs.
//
// +kubebuilder:object:root=true
type RopewalkConfigList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []RopewalkConfig `json:"items"`
}

// ConfigSpec selects nodes and has their settings. A setting that is left out is that of the agent's flags.
type ConfigSpec struct {
	// NodeSelector selects nodes by their labels. An empty one selects all nodes.
	NodeSelector NodeSelector `json:"nodeSelector"`

	// Priority decides which of several RopewalkConfigs that select a node applies: the highest. Of equal ones the oldest applies, then
	// the first by name, and all of them report a conflict.
	// +optional
	// +kubebuilder:validation:Minimum=-1000000
	// +kubebuilder:validation:Maximum=1000000
	Priority int32 `json:"priority,omitempty"`

	// Port is the UDP port that the tunnel listens on.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// MTU of the tunnel in bytes of the inner packet, in mode mesh, instead of the one derived from the node's interface.
	// +optional
	// +kubebuilder:validation:Minimum=576
	// +kubebuilder:validation:Maximum=65535
	MTU int32 `json:"mtu,omitempty"`

	// PersistentKeepalive is the interval of keepalive messages to other nodes in seconds, in mode mesh; 0: none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	PersistentKeepalive int32 `json:"persistentKeepalive,omitempty"`

	// Underlay is the path of data messages, in mode mesh: UDP sockets, AF_XDP sockets where available, or the faster one.
	// +optional
	Underlay Underlay `json:"underlay,omitempty"`
}

// Underlay is the path of data messages.
//
// +kubebuilder:validation:Enum=auto;udp;xdp
type Underlay string

// NodeSelector is a label selector, as that of a Deployment (metav1.LabelSelector), with bounds. All of it must match.
type NodeSelector struct {
	// MatchLabels are labels that a node must have.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 317 && k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="want keys of labels"
	MatchLabels map[string]LabelValue `json:"matchLabels,omitempty"`

	// MatchExpressions are requirements that a node's labels must meet.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	MatchExpressions []NodeSelectorRequirement `json:"matchExpressions,omitempty"`
}

// NodeSelectorRequirement is a condition for the value of a label.
//
// +kubebuilder:validation:XValidation:rule="self.operator in ['In', 'NotIn'] == (has(self.values) && size(self.values) > 0)",message="In and NotIn need values, Exists and DoesNotExist have none"
type NodeSelectorRequirement struct {
	// Key of the label.
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	Key string `json:"key"`
	// Operator relates the label to the values.
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator metav1.LabelSelectorOperator `json:"operator"`
	// Values of the label.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Values []LabelValue `json:"values,omitempty"`
}

// LabelSelector returns the selector as Kubernetes' own type.
func (s *NodeSelector) LabelSelector() *metav1.LabelSelector {
	all := &metav1.LabelSelector{}
	for key, value := range s.MatchLabels {
		metav1.AddLabelToSelector(all, key, string(value))
	}
	for _, r := range s.MatchExpressions {
		e := metav1.LabelSelectorRequirement{Key: r.Key, Operator: r.Operator}
		for _, v := range r.Values {
			e.Values = append(e.Values, string(v))
		}
		all.MatchExpressions = append(all.MatchExpressions, e)
	}
	return all
}

// ConfigStatus is what one of the agents found in the RopewalkNodes. The agents that write it read it to know whether it differs. None decides
// by it. It is late by half a minute, or by minutes while the agents of older nodes do not write it.
type ConfigStatus struct {
	// ObservedGeneration is the generation of the spec that the status reflects.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// FollowingNodes is the number of nodes that have applied this generation of the spec.
	// +optional
	// +kubebuilder:validation:Minimum=0
	FollowingNodes int32 `json:"followingNodes"`

	// PendingNodes is the number of nodes that have not applied this generation yet: they follow an earlier one, or wait for their turn to
	// restart the tunnel.
	// +optional
	// +kubebuilder:validation:Minimum=0
	PendingNodes int32 `json:"pendingNodes"`

	// RefusingNodes is the number of nodes that cannot apply this generation of the spec, and keep what they had.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RefusingNodes int32 `json:"refusingNodes"`

	// Conditions: Accepted reports whether nodes refuse the settings, Conflict whether another RopewalkConfig of the same priority selects
	// one of its nodes.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ConditionConflict reports whether another RopewalkConfig of the same priority selects the same node. Its message has the rule and the other ones.
const ConditionConflict = "Conflict"

// Reasons of ConditionAccepted and ConditionConflict of a RopewalkConfig, besides those of a RopewalkPeer.
const (
	ReasonRefused    = "Refused"    // a node cannot apply the settings
	ReasonNoConflict = "NoConflict" // no other one of the same priority selects its nodes
)

// ConfigState is a node's progress with a RopewalkConfig.
//
// +kubebuilder:validation:Enum=Applied;Pending;Refused
type ConfigState string

// The states.
const (
	ConfigApplied ConfigState = "Applied"
	ConfigPending ConfigState = "Pending" // it has not been applied yet: the reconcile failed and is retried
	ConfigRefused ConfigState = "Refused" // the node keeps what it had; its condition Ready has the reason
)

// FollowedConfig is the RopewalkConfig that applies to a node.
type FollowedConfig struct {
	// Name of the RopewalkConfig.
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Generation of its spec.
	Generation int64 `json:"generation"`
	// State of the node with this generation.
	State ConfigState `json:"state"`
	// ConflictsWith are other RopewalkConfigs of the same priority that select the node, in ascending order. The list is cut at its maximum
	// length.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=63
	ConflictsWith []string `json:"conflictsWith,omitempty"`
}

// MaxConflicts is the maximum length of FollowedConfig.ConflictsWith.
const MaxConflicts = 8
