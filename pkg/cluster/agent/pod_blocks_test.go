// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

func TestPodPrefixesAreReadFromPluginsObjects(t *testing.T) {
	for _, c := range []struct {
		name, text string
		node       string
		want       []netip.Prefix
	}{
		{
			"CiliumNode", `{"metadata":{"name":"a"},"spec":{"ipam":{"podCIDRs":["10.0.1.0/24","fd00:1::/64","nonsense"]},"encryption":{"key":1}}}`,
			"a",
			[]netip.Prefix{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParsePrefix("fd00:1::/64")},
		},
		{
			"CiliumNode with several pools", `{"metadata":{"name":"a"},"spec":{"ipam":{"pools":{"allocated":[{"pool":"default","cidrs":["10.10.1.0/24"]},` +
				`{"pool":"green","cidrs":["10.20.1.0/24","fd00::100/120"]}],"requested":[{"pool":"green"}]}}}}`,
			"a",
			[]netip.Prefix{netip.MustParsePrefix("10.10.1.0/24"), netip.MustParsePrefix("10.20.1.0/24"), netip.MustParsePrefix("fd00::100/120")},
		},
		{"CiliumNode without prefixes yet", `{"metadata":{"name":"a"},"spec":{"ipam":{}}}`, "a", nil},
		{
			"BlockAffinity", `{"metadata":{"name":"a-10-244-1-64-26"},"spec":{"cidr":"10.244.1.64/26","node":"a","state":"confirmed","deleted":"false"}}`,
			"a",
			[]netip.Prefix{netip.MustParsePrefix("10.244.1.64/26")},
		},
		{"BlockAffinity that is pending", `{"metadata":{"name":"x"},"spec":{"cidr":"10.244.1.64/26","node":"a","state":"pending","deleted":"false"}}`, "a", nil},
		{"BlockAffinity that is being released", `{"metadata":{"name":"x"},"spec":{"cidr":"10.244.1.64/26","node":"a","state":"confirmed","deleted":"true"}}`, "a", nil},
	} {
		var b podBlock
		if err := json.Unmarshal([]byte(c.text), &b); err != nil {
			t.Fatal(err)
		}
		if node, got := b.prefixes(); node != c.node || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %s %v, want %s %v", c.name, node, got, c.node, c.want)
		}
		other := b.DeepCopyObject().(*podBlock)
		other.Labels = map[string]string{"heartbeat": "1"}
		if !samePrefixes(&b, other) {
			t.Errorf("%s: a change of labels matters", c.name)
		}
		other.Spec.IPAM.PodCIDRs, other.Spec.State, other.Spec.CIDR = []string{"10.9.0.0/24"}, "confirmed", "10.9.0.0/26"
		if other.Spec.Deleted = "false"; samePrefixes(&b, other) {
			t.Errorf("%s: a change of the prefix does not matter", c.name)
		}
	}
}

func TestPodCIDRSourceNames(t *testing.T) {
	for text, ok := range map[string]bool{"node": true, "cilium": true, "calico": true, "auto": false, "": false} {
		var s PodCIDRSource
		if err := s.UnmarshalText([]byte(text)); (err == nil) != ok || ok && string(s) != text {
			t.Errorf("%q: got %q, %v", text, s, err)
		}
	}
}

// TestRopewalkNodeOfAdministratorApplies has one that was created before the node's agent ran.
func TestRopewalkNodeOfAdministratorApplies(t *testing.T) {
	n := parseNode(t, aNode)
	made := &v1alpha1.RopewalkNode{ObjectMeta: metav1.ObjectMeta{Name: n.Name}, Spec: v1alpha1.NodeSpec{Endpoint: "198.51.100.1"}}
	if m := toMesh(withSettings(n, made), nil); m.Endpoint.String() != "198.51.100.1" || m.Agent != nil {
		t.Errorf("got %+v", m)
	}
	made.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: "another"}}
	if m := toMesh(withSettings(n, made), nil); m.Endpoint.IsValid() {
		t.Errorf("a RopewalkNode of another node: got %+v", m)
	}
}

func TestNodesThatCannotRunAgentsAreOptedOut(t *testing.T) {
	for labels, want := range map[string]bool{
		`"kubernetes.io/os":"windows"`: true, `"kubernetes.io/os":"linux"`: false,
		`"kubernetes.io/os":"linux","type":"virtual-kubelet"`: true, `"kubernetes.io/os":"linux","type":"worker"`: false,
	} {
		n := parseNode(t, strings.Replace(aNode, `"metadata":{`, `"metadata":{"labels":{`+labels+`},`, 1))
		if n.Labels == nil {
			t.Fatal("the test's node has no labels")
		}
		if _, err := trimObject(n); err != nil || n.Labels != nil {
			t.Fatalf("labels %v, %v", n.Labels, err)
		}
		if m := toMesh(n, nil); m.OptOut != want {
			t.Errorf("%s: opted out %v", labels, m.OptOut)
		}
		if isRelevantUpdate(parseNode(t, aNode), n, "") != want {
			t.Errorf("%s: relevant %v", labels, !want)
		}
	}
}

func TestPodBlocksKeepNameAndPrefixesOnly(t *testing.T) {
	b := &podBlock{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u", ResourceVersion: "7", Finalizers: []string{"f"}, OwnerReferences: []metav1.OwnerReference{{Name: "n1"}}}}
	b.Spec.IPAM.PodCIDRs = []string{"10.0.1.0/24"}
	if _, err := trimBlock(b); err != nil || !reflect.DeepEqual(b.ObjectMeta, metav1.ObjectMeta{Name: "n1", ResourceVersion: "7"}) {
		t.Errorf("got the metadata %+v, %v", b.ObjectMeta, err)
	}
	if node, all := b.prefixes(); node != "n1" || len(all) != 1 {
		t.Errorf("got node %q, prefixes %v", node, all)
	}
}
