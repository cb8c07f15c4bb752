// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The API server sends Nodes as protobuf, which takes a third of the bytes of JSON, to clients whose types can decode it. The
// agent needs a few hundred bytes of a Node out of about ten kilobytes (images, conditions, capacities). These types decode
// those fields and skip the rest at no cost.

// Field numbers in k8s.io/api/core/v1/generated.proto.
const (
	listMetadata   = 1 // NodeList
	listItems      = 2
	nodeMetadata   = 1 // Node
	nodeSpec       = 2
	nodeStatus     = 3
	specTaints     = 5 // NodeSpec
	specPodCIDRs   = 7
	taintKey       = 1 // Taint
	statusAddress  = 5 // NodeStatus
	addressType    = 1 // NodeAddress
	addressAddress = 2
)

// Reset and Unmarshal are the methods that apimachinery's protobuf decoder needs.

// Reset empties the node.
func (n *node) Reset() { *n = node{} }

// Unmarshal decodes a Node (core/v1). It does not retain data.
func (n *node) Unmarshal(data []byte) error {
	err := eachField(data, func(number protowire.Number, value []byte) error {
		switch number {
		case nodeMetadata:
			return n.ObjectMeta.Unmarshal(value)
		case nodeSpec:
			return n.unmarshalSpec(value)
		case nodeStatus:
			return n.unmarshalStatus(value)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("decoding a Node: %w", err)
	}
	n.SetManagedFields(nil) // the largest part of the metadata
	return nil
}

func (n *node) unmarshalSpec(data []byte) error {
	return eachField(data, func(number protowire.Number, value []byte) error {
		switch number {
		case specPodCIDRs:
			n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, string(value))
		case specTaints:
			return n.unmarshalTaint(value)
		}
		return nil
	})
}

func (n *node) unmarshalTaint(data []byte) error {
	return eachField(data, func(number protowire.Number, value []byte) error {
		if number == taintKey {
			n.Spec.Taints = append(n.Spec.Taints, nodeTaint{string(value)})
		}
		return nil
	})
}

func (n *node) unmarshalStatus(data []byte) error {
	return eachField(data, func(number protowire.Number, value []byte) error {
		if number != statusAddress {
			return nil
		}
		var a nodeAddress
		err := eachField(value, func(number protowire.Number, value []byte) error {
			switch number {
			case addressType:
				a.Type = string(value)
			case addressAddress:
				a.Address = string(value)
			}
			return nil
		})
		n.Status.Addresses = append(n.Status.Addresses, a)
		return err
	})
}

// Reset empties the list.
func (l *nodeList) Reset() { *l = nodeList{} }

// Unmarshal decodes a NodeList (core/v1). It does not retain data.
func (l *nodeList) Unmarshal(data []byte) error {
	return eachField(data, func(number protowire.Number, value []byte) error {
		switch number {
		case listMetadata:
			l.ListMeta = metav1.ListMeta{}
			return l.ListMeta.Unmarshal(value)
		case listItems:
			l.Items = append(l.Items, node{})
			return l.Items[len(l.Items)-1].Unmarshal(value)
		}
		return nil
	})
}

// eachField calls a function with each length-delimited field of a message, and skips the others.
func eachField(message []byte, with func(number protowire.Number, value []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protoError(n)
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return protoError(n)
		}
		if kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			if err := with(number, value); err != nil {
				return err
			}
		}
		message = message[n:]
	}
	return nil
}

func protoError(code int) error {
	return fmt.Errorf("malformed protobuf: %w", protowire.ParseError(code))
}
