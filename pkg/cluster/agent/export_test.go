// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/mesh/view"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/golden"
)

// exportedCluster returns a cluster of two nodes.
func exportedCluster() view.Cluster {
	c := view.Cluster{Time: time.Unix(1e9, 0), Peers: []view.Peer{}}
	for i := range byte(2) {
		c.Nodes = append(c.Nodes, view.Node{Node: meshNode(i, noise.PublicKey{i + 1}), Origin: view.Whole})
	}
	c.Nodes[1].ExternalIPs = []netip.Addr{netip.MustParseAddr("198.51.100.7")}
	return c
}

// TestManifestDefinesExportedPeers reads the manifest as agents read RopewalkPeers.
func TestManifestDefinesExportedPeers(t *testing.T) {
	peers, skipped, err := Export(exportedCluster(), nil, ExportOptions{Cluster: "east", Keepalive: 25})
	if err != nil || len(skipped) > 0 || len(peers) != 2 {
		t.Fatalf("got %+v, skipped %v, %v", peers, skipped, err)
	}
	peers[1].Endpoint, peers[1].Gateway = netip.AddrPort{}, "w1"
	text, err := PeerManifest("east", peers)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/export.yaml", text)
	var got []mesh.ExternalPeer
	for doc := range bytes.SplitSeq(text, []byte("---\n")) {
		rp := &v1alpha1.RopewalkPeer{}
		object, err := yaml.YAMLToJSON(doc)
		if err != nil || bytes.Equal(object, []byte("null")) {
			continue // the comment
		}
		d := json.NewDecoder(bytes.NewReader(object))
		d.DisallowUnknownFields()
		if err := d.Decode(rp); err != nil || rp.Labels[v1alpha1.LabelCluster] != "east" || rp.Kind != v1alpha1.PeerKind {
			t.Errorf("%v, got %+v", err, rp)
		}
		p := toExternal(rp)
		p.Selected = true
		got = append(got, p)
	}
	if diff := cmp.Diff(peers, got, cmpopts.EquateComparable(netip.AddrPort{}, netip.Prefix{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("-exported +read\n%s", diff)
	}
}

func TestExportRefusesOverlappingClusters(t *testing.T) {
	imported := func(cluster, allowed string) view.Peer {
		return view.Peer{Name: "west.w1", Cluster: cluster, Definition: mesh.ExternalPeer{
			Name: "west.w1", Key: noise.PublicKey{9}, AllowedIPs: []netip.Prefix{netip.MustParsePrefix(allowed)},
		}}
	}
	pods := exportedCluster().Nodes[0].PodCIDRs[0].String()
	gateway := view.Node{Node: meshNode(7, noise.PublicKey{7}), Origin: view.Whole}
	gateway.Name = "w1"
	for _, c := range []struct {
		name  string
		edit  func(own, other *view.Cluster)
		o     ExportOptions
		wants string // in the error; "": none
	}{
		{"a cluster like this one", func(_, _ *view.Cluster) {}, ExportOptions{}, "its key is the key of node"},
		{"an empty cluster", func(_, other *view.Cluster) { other.Nodes = nil }, ExportOptions{}, ""},
		{"its pods, with other keys", func(_, other *view.Cluster) {
			for i := range other.Nodes {
				other.Nodes[i].Node = meshNode(byte(i), noise.PublicKey{byte(i + 7)})
			}
		}, ExportOptions{}, "the other cluster would refuse the RopewalkPeer east.a: its allowed IP " + pods + " overlaps the pods of node a"},
		{"imported pods", func(own, other *view.Cluster) { own.Peers, other.Nodes = []view.Peer{imported("west", pods)}, nil }, ExportOptions{}, "overlap the pods " + pods + " of the cluster west (RopewalkPeer west.w1)"},
		{"a laptop that agents refuse", func(own, other *view.Cluster) { own.Peers, other.Nodes = []view.Peer{imported("", pods)}, nil }, ExportOptions{}, ""},
		{"other imported pods", func(own, other *view.Cluster) {
			own.Peers, other.Nodes = []view.Peer{imported("west", "10.77.0.0/24")}, nil
		}, ExportOptions{}, ""},
		{"a peer of the other cluster", func(_, other *view.Cluster) {
			other.Nodes, other.Peers = []view.Node{{Node: mesh.Node{Name: "w1"}, Origin: view.Whole}}, []view.Peer{imported("", pods)}
		}, ExportOptions{}, "its allowed IP " + pods + " is an allowed IP of the older RopewalkPeer west.w1"},
		{"an earlier export", func(_, other *view.Cluster) {
			other.Nodes, other.Peers = []view.Node{{Node: mesh.Node{Name: "w1"}, Origin: view.Whole}}, []view.Peer{imported("east", pods)}
		}, ExportOptions{}, ""},
		{"peers of the other cluster that are unknown", func(_, other *view.Cluster) { other.Nodes, other.Peers = nil, nil }, ExportOptions{}, "reading the RopewalkPeers of the other cluster: forbidden"},
		{"peers of this cluster that are unknown", func(own, _ *view.Cluster) { own.Peers = nil }, ExportOptions{}, "reading the RopewalkPeers: forbidden"},
		{"a peer that came after an earlier export", func(_, other *view.Cluster) {
			earlier, later := imported("east", pods), imported("", pods)
			earlier.Name, later.Name, later.Definition.Name = "east.a", "laptop", "laptop"
			later.Definition.Created = other.Time.Add(-time.Hour)
			earlier.Definition.Created = later.Definition.Created.Add(-time.Hour)
			other.Nodes, other.Peers = []view.Node{{Node: mesh.Node{Name: "w1"}, Origin: view.Whole}}, []view.Peer{later, earlier}
		}, ExportOptions{}, ""},
		{"a peer of another origin with the name", func(_, other *view.Cluster) {
			foreign := imported("", "10.77.0.0/24")
			foreign.Name, foreign.Definition.Name = "east.a", "east.a"
			other.Nodes, other.Peers = nil, []view.Peer{foreign}
		}, ExportOptions{}, "the other cluster has a RopewalkPeer east.a without the label ropewalk.io/cluster=east"},
		{"no node with an agent", func(own, _ *view.Cluster) { own.Nodes[0].Agent, own.Nodes[1].Agent = nil, nil }, ExportOptions{}, "no node is in mode mesh with a key and pods"},
		{"a gateway of the other cluster", func(_, other *view.Cluster) { other.Nodes = []view.Node{gateway} }, ExportOptions{Via: "w1"}, ""},
		{"a gateway that opted out", func(_, other *view.Cluster) {
			other.Nodes = []view.Node{gateway}
			other.Nodes[0].OptOut = true
		}, ExportOptions{Via: "w1"}, "the other cluster has no node w1 in mode mesh with a key"},
		{"a gateway in mode spread", func(_, other *view.Cluster) {
			other.Nodes = []view.Node{gateway}
			other.Nodes[0].Agent = &mesh.Agent{Mode: mesh.ModeSpread}
		}, ExportOptions{Via: "w1"}, "the other cluster has no node w1 in mode mesh with a key"},
		{"a gateway without a key", func(_, other *view.Cluster) {
			other.Nodes = []view.Node{gateway}
			other.Nodes[0].Agent = &mesh.Agent{Mode: mesh.ModeMesh}
		}, ExportOptions{Via: "w1"}, "the other cluster has no node w1 in mode mesh with a key"},
		{"no such gateway", func(_, other *view.Cluster) { other.Nodes = nil }, ExportOptions{Via: "w1"}, "the other cluster has no node w1 in mode mesh with a key"},
		{"an ExternalIP on the gateway", func(_, other *view.Cluster) { other.Nodes = nil }, ExportOptions{ExternalIPs: true, Gateway: "b"}, ""},
		{"an ExternalIP on one node", func(_, other *view.Cluster) { other.Nodes = nil }, ExportOptions{ExternalIPs: true}, "node a: it has no ExternalIP"},
	} {
		own, other := exportedCluster(), exportedCluster()
		c.edit(&own, &other)
		c.o.Cluster = "east"
		_, _, err := Export(own, &other, c.o)
		if c.wants == "" && err != nil || c.wants != "" && (err == nil || !strings.Contains(err.Error(), c.wants)) {
			t.Errorf("%s: got error %v, want %q in it", c.name, err, c.wants)
		}
	}
}

func TestNamesOfExportedPeersAreValidAndDistinct(t *testing.T) {
	long := strings.Repeat("a", 60)
	cluster := strings.Repeat("c", 30)
	var all []string
	for _, node := range []string{"n1", "n1.example.org", long, long + "b", long + ".b", strings.Repeat("a", 24) + ".b" + long, strings.Repeat("a.", 100) + "b"} {
		for _, c := range []string{"c", cluster} {
			name := peerName(c, node)
			if len(name) > maxPeerName || len(validation.IsDNS1123Subdomain(name)) > 0 || slices.Contains(all, name) || !strings.HasPrefix(name, c+".") {
				t.Errorf("%s %s: got %s", c, node, name)
			}
			all = append(all, name)
		}
	}
}
