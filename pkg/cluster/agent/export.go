// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh/view"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// ExportOptions select what Export makes of a cluster's nodes.
type ExportOptions struct {
	Cluster     string         // the cluster's name, a DNS label of at most 30 characters
	ExternalIPs bool           // the endpoints have the nodes' ExternalIPs
	BehindNAT   bool           // there are no endpoints
	Keepalive   uint16         // in seconds; 0: none
	Gateway     string         // the only node that is exported, with the pods of all; "": each node is
	Pods        []netip.Prefix // the cluster's, with a gateway; none: those of the nodes
	Via         string         // the gateway of the other cluster; "": there is none
}

// Export returns a cluster's nodes as RopewalkPeers of another cluster, by name, and what it left out. other is that cluster; nil: unknown. The error
// reports what agents would refuse.
func Export(c view.Cluster, other *view.Cluster, o ExportOptions) (peers []mesh.ExternalPeer, skipped []mesh.Problem, err error) {
	if c.Peers == nil {
		return nil, nil, fmt.Errorf("reading the RopewalkPeers: %w", errPeersForbidden)
	}
	cfg := mesh.ExportConfig{BehindNAT: o.BehindNAT, Keepalive: o.Keepalive, Gateway: o.Gateway, Pods: o.Pods, Via: o.Via}
	if o.ExternalIPs {
		cfg.PublicAddrs = publicAddrs(c.Nodes)
	}
	peers, skipped, err = mesh.Export(c.MeshNodes(), cfg)
	if err == nil && len(peers) == 0 {
		err = errors.New("no node is in mode mesh with a key and pods")
	}
	if err = errors.Join(err, overlapsWithImported(peers, c.Peers)); err != nil {
		return nil, skipped, err
	}
	for i := range peers {
		peers[i].Name = peerName(o.Cluster, peers[i].Name)
	}
	if other != nil {
		err = errors.Join(refusedIn(other, peers, o.Cluster), lacksGateway(other, o.Via))
	}
	return peers, skipped, err
}

// publicAddrs returns the first usable ExternalIP of each node.
func publicAddrs(nodes []view.Node) map[string]netip.Addr {
	all := map[string]netip.Addr{}
	for i := range nodes {
		if usable := mesh.UsableAddrs(nodes[i].ExternalIPs); len(usable) > 0 {
			all[nodes[i].Name] = usable[0]
		}
	}
	return all
}

// overlapsWithImported returns an error if pods of another cluster, whose nodes are peers of this one, overlap those of this one.
func overlapsWithImported(peers []mesh.ExternalPeer, imported []view.Peer) error {
	var errs []error
	for i := range imported {
		p := &imported[i]
		if p.Cluster == "" {
			continue
		}
		for j := range peers {
			if own, theirs, overlap := firstOverlap(peers[j].AllowedIPs, p.Definition.AllowedIPs); overlap {
				errs = append(errs, fmt.Errorf("node %s: its pods %s overlap the pods %s of the cluster %s (RopewalkPeer %s)", peers[j].Name, own, theirs, p.Cluster, p.Name))
			}
		}
	}
	return errors.Join(errs...)
}

func firstOverlap(a, b []netip.Prefix) (inA, inB netip.Prefix, overlap bool) {
	for _, inA := range a {
		for _, inB := range b {
			if inA.Overlaps(inB) {
				return inA, inB, true
			}
		}
	}
	return inA, inB, false
}

// maxPeerName is the maximum length of a RopewalkPeer's name.
const maxPeerName = 63

// peerName returns the name of a node's RopewalkPeer. The cluster's name has no dot, so that no two of both are the same. Long names end with a hash.
func peerName(cluster, node string) string {
	name := cluster + "." + node
	if len(name) <= maxPeerName {
		return name
	}
	hash := fmt.Sprintf("-%.4x", sha256.Sum256([]byte(node)))
	return strings.TrimRight(name[:maxPeerName-len(hash)], ".-") + hash
}

// refusedIn returns an error if the nodes of another cluster would refuse peers, or if that cannot be known. Peers that it has from an earlier
// export are replaced, and keep their age.
func refusedIn(other *view.Cluster, peers []mesh.ExternalPeer, cluster string) error {
	if other.Peers == nil {
		return fmt.Errorf("reading the RopewalkPeers of the other cluster: %w", errPeersForbidden)
	}
	ages, errs := map[string]time.Time{}, []error{}
	for _, p := range peers {
		ages[p.Name] = other.Time
	}
	var all []mesh.ExternalPeer
	for i := range other.Peers {
		p := &other.Peers[i]
		_, replaced := ages[p.Name]
		switch {
		case p.Cluster != cluster && replaced:
			errs = append(errs, fmt.Errorf("the other cluster has a RopewalkPeer %s without the label %s=%s, which would be replaced", p.Name, v1alpha1.LabelCluster, cluster))
		case p.Cluster != cluster:
			all = append(all, p.Definition)
		case replaced:
			ages[p.Name] = p.Definition.Created
		}
	}
	for _, p := range peers {
		p.Created = ages[p.Name]
		all = append(all, p)
	}
	isExported := func(name string) bool { _, is := ages[name]; return is }
	refused, err := mesh.RefusedExports(other.MeshNodes(), all, isExported)
	if err != nil {
		errs = append(errs, fmt.Errorf("planning the tunnels of the other cluster: %w", err))
	}
	for _, r := range refused {
		errs = append(errs, fmt.Errorf("the other cluster would refuse the RopewalkPeer %s: %s", r.Peer, r.Reason))
	}
	return errors.Join(errs...)
}

// errPeersForbidden means that peers could overlap that are not known.
var errPeersForbidden = errors.New("forbidden: needs the right to list ropewalkpeers.ropewalk.io")

// lacksGateway returns an error if another cluster does not have a gateway that its nodes have as a peer.
func lacksGateway(other *view.Cluster, name string) error {
	isGateway := func(n mesh.Node) bool {
		return n.Name == name && !n.OptOut && n.Agent != nil && n.Agent.Mode == mesh.ModeMesh
	}
	if name == "" || slices.ContainsFunc(other.MeshNodes(), isGateway) {
		return nil
	}
	return fmt.Errorf("the other cluster has no node %s in mode mesh with a key, which is to be its gateway", name)
}

// PeerManifest returns RopewalkPeers as YAML for kubectl. It holds no secrets.
func PeerManifest(cluster string, peers []mesh.ExternalPeer) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Nodes of the cluster %s as peers of another cluster, by ropewalk mesh export. There are no secrets in it.\n", cluster)
	for i := range peers {
		p := &peers[i]
		m := v1alpha1.RopewalkPeer{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion().String(), Kind: v1alpha1.PeerKind},
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, Labels: map[string]string{v1alpha1.LabelCluster: cluster}},
			Spec:       v1alpha1.PeerSpec{PublicKey: v1alpha1.PublicKey(p.Key.Base64()), PersistentKeepalive: int32(p.Keepalive), Gateway: p.Gateway},
		}
		if p.Endpoint.IsValid() {
			m.Spec.Endpoint = v1alpha1.PeerEndpoint(p.Endpoint.String())
		}
		for _, a := range p.AllowedIPs {
			m.Spec.AllowedIPs = append(m.Spec.AllowedIPs, v1alpha1.PeerPrefix(a.String()))
		}
		text, err := yaml.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("writing the RopewalkPeer %s: %w", p.Name, err)
		}
		b.WriteString("---\n")
		b.Write(text)
	}
	return b.Bytes(), nil
}
