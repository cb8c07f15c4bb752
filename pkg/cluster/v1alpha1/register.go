// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The resource names in the API's paths.
const (
	Resource             = "ropewalknodes"
	AnnouncementResource = "ropewalkannouncements"
	PeerResource         = "ropewalkpeers"
	MeshResource         = "ropewalkmeshes"
)

// The kinds in manifests.
const (
	Kind             = "RopewalkNode"
	AnnouncementKind = "RopewalkAnnouncement"
	PeerKind         = "RopewalkPeer"
	MeshKind         = "RopewalkMesh"
)

// GroupVersion returns ropewalk.io/v1alpha1.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "ropewalk.io", Version: "v1alpha1"}
}

// AddToScheme registers the types. It never fails.
func AddToScheme(s *runtime.Scheme) error {
	gv := GroupVersion()
	s.AddKnownTypes(gv, &RopewalkNode{}, &RopewalkAnnouncement{}, &RopewalkPeer{}, &RopewalkMesh{})
	for kind, list := range map[string]runtime.Object{
		Kind: &RopewalkNodeList{}, AnnouncementKind: &RopewalkAnnouncementList{}, PeerKind: &RopewalkPeerList{}, MeshKind: &RopewalkMeshList{},
	} { // a generic type has another name than its kind
		s.AddKnownTypeWithName(gv.WithKind(kind+"List"), list)
	}
	metav1.AddToGroupVersion(s, gv)
	return nil
}
