// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// PodCIDRSource says where the pod prefixes of nodes are read, in mesh mode. It implements encoding.TextMarshaler and
// TextUnmarshaler.
type PodCIDRSource string

// The sources.
const (
	PodCIDRsOfNodes  PodCIDRSource = "node"   // Node.spec.podCIDRs, from the controller manager
	PodCIDRsOfCilium PodCIDRSource = "cilium" // CiliumNode.spec.ipam: podCIDRs, and with IPAM mode multi-pool pools.allocated
	PodCIDRsOfCalico PodCIDRSource = "calico" // BlockAffinity.spec.cidr, as with Calico's IPAM
)

// MarshalText returns the source's name.
func (s PodCIDRSource) MarshalText() ([]byte, error) { return []byte(s), nil }

// UnmarshalText accepts the names of the sources.
func (s *PodCIDRSource) UnmarshalText(text []byte) error {
	switch v := PodCIDRSource(text); v {
	case PodCIDRsOfNodes, PodCIDRsOfCilium, PodCIDRsOfCalico:
		*s = v
		return nil
	}
	return fmt.Errorf("%q: want node, cilium or calico", text)
}

// podBlock has the fields of a CiliumNode (cilium.io/v2) and of a BlockAffinity (crd.projectcalico.org/v1) that the agent reads.
type podBlock struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec podBlockSpec `json:"spec"`
}

type podBlockSpec struct {
	// IPAM is of a CiliumNode, which has its Node's name.
	IPAM struct {
		PodCIDRs []string `json:"podCIDRs"`
		Pools    struct {
			Allocated []ciliumPool `json:"allocated"`
		} `json:"pools"`
	} `json:"ipam"`

	// The others are of a BlockAffinity.
	CIDR    string `json:"cidr"`
	Node    string `json:"node"`
	State   string `json:"state"`   // confirmed, pending or pendingDeletion
	Deleted string `json:"deleted"` // "true" or "false"
}

// ciliumPool is a node's part of a CiliumPodIPPool.
type ciliumPool struct {
	CIDRs []string `json:"cidrs"`
}

// DeepCopyObject implements runtime.Object.
func (b *podBlock) DeepCopyObject() runtime.Object {
	c := *b
	b.DeepCopyInto(&c.ObjectMeta)
	c.Spec.IPAM.PodCIDRs = slices.Clone(b.Spec.IPAM.PodCIDRs)
	c.Spec.IPAM.Pools.Allocated = slices.Clone(b.Spec.IPAM.Pools.Allocated)
	for i := range c.Spec.IPAM.Pools.Allocated {
		c.Spec.IPAM.Pools.Allocated[i].CIDRs = slices.Clone(b.Spec.IPAM.Pools.Allocated[i].CIDRs)
	}
	return &c
}

// resource returns kind and resource of the source's objects; false: it has none.
func (s PodCIDRSource) resource() (kind schema.GroupVersionKind, resource string, ok bool) {
	switch s {
	case PodCIDRsOfCilium:
		return schema.GroupVersionKind{Group: "cilium.io", Version: "v2", Kind: "CiliumNode"}, "ciliumnodes", true
	case PodCIDRsOfCalico:
		return schema.GroupVersionKind{Group: "crd.projectcalico.org", Version: "v1", Kind: "BlockAffinity"}, "blockaffinities", true
	}
	return kind, "", false
}

// podBlocks follows the objects of a PodCIDRSource.
type podBlocks struct{ cache.SharedIndexInformer }

// newPodBlocks returns nil for PodCIDRsOfNodes. changed is called after each change.
func newPodBlocks(cfg *rest.Config, source PodCIDRSource, changed func()) (*podBlocks, error) {
	kind, resource, ok := source.resource()
	if !ok {
		return nil, nil
	}
	c, err := openForeign[podBlock](cfg, kind)
	if err != nil {
		return nil, err
	}
	b := &podBlocks{cache.NewSharedIndexInformer(cache.NewListWatchFromClient(c, resource, "", fields.Everything()), &podBlock{}, 0, nil)}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, DeleteFunc: func(any) { changed() },
		UpdateFunc: func(before, after any) {
			old, _ := before.(*podBlock)
			if now, ok := after.(*podBlock); !ok || old == nil || !samePrefixes(old, now) {
				changed()
			}
		},
	}
	if err = b.SetTransform(trimBlock); err == nil {
		_, err = b.AddEventHandler(handler)
	}
	if err != nil {
		return nil, fmt.Errorf("setting up the informer of pod prefixes: %w", err)
	}
	return b, nil
}

// trimBlock is the informer's transform. Of the metadata it keeps the informer's part, and the
// name, which a CiliumNode has from its node.
func trimBlock(object any) (any, error) {
	if b, ok := object.(*podBlock); ok {
		b.ObjectMeta = metav1.ObjectMeta{Name: b.Name, ResourceVersion: b.ResourceVersion}
	}
	return object, nil
}

// samePrefixes reports whether two versions of an object mean the same. CiliumNodes change often in other fields.
func samePrefixes(a, b *podBlock) bool {
	nodeA, listA := a.prefixes()
	nodeB, listB := b.prefixes()
	return nodeA == nodeB && slices.Equal(listA, listB)
}

// prefixes returns the object's node and its pod prefixes. It skips prefixes that it cannot parse.
func (b *podBlock) prefixes() (node string, all []netip.Prefix) {
	texts := slices.Clone(b.Spec.IPAM.PodCIDRs)
	for _, pool := range b.Spec.IPAM.Pools.Allocated {
		texts = append(texts, pool.CIDRs...)
	}
	if b.Spec.Node != "" && b.Spec.State == "confirmed" && b.Spec.Deleted != "true" {
		texts = []string{b.Spec.CIDR}
	}
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p.Masked())
		}
	}
	return cmp.Or(b.Spec.Node, b.Name), all
}

// byNode returns the pod prefixes of all nodes.
func (b *podBlocks) byNode() map[string][]netip.Prefix {
	all := map[string][]netip.Prefix{}
	for _, o := range b.GetStore().List() {
		if block, ok := o.(*podBlock); ok {
			node, prefixes := block.prefixes()
			all[node] = append(all[node], prefixes...)
		}
	}
	for _, prefixes := range all {
		slices.SortFunc(prefixes, netip.Prefix.Compare)
	}
	return all
}
