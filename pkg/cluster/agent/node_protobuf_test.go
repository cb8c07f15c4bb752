// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// wired encodes a length-delimited field.
func wired(number protowire.Number, parts ...[]byte) []byte {
	value := slices.Concat(parts...)
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), value)
}

// tag encodes the tag of a field whose number is below 16.
func tag(number protowire.Number, kind protowire.Type) byte {
	return byte(protowire.EncodeTag(number, kind))
}

// encode encodes a node as an API server does, with fields in between that the agent does not read.
func encode(t testing.TB, n *node) []byte {
	t.Helper()
	meta := n.DeepCopyObject().(*node).ObjectMeta
	meta.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(`{"f:status":{}}`)}}
	metadata, err := meta.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	unread := slices.Concat([]byte{tag(4, protowire.VarintType), 1}, // unschedulable
		protowire.AppendTag(nil, 20, protowire.Fixed64Type), make([]byte, 8), protowire.AppendTag(nil, 21, protowire.Fixed32Type), make([]byte, 4), wired(6, []byte("configSource")))
	spec := wired(1, []byte("podCIDR"))
	for _, taint := range n.Spec.Taints {
		spec = append(spec, wired(specTaints, wired(taintKey, []byte(taint.Key)), wired(3, []byte("NoSchedule")))...)
	}
	for _, p := range n.Spec.PodCIDRs {
		spec = append(spec, wired(specPodCIDRs, []byte(p))...)
	}
	var status []byte
	for _, a := range n.Status.Addresses {
		status = append(status, wired(statusAddress, wired(addressType, []byte(a.Type)), wired(addressAddress, []byte(a.Address)))...)
	}
	return slices.Concat(wired(nodeMetadata, metadata), wired(nodeSpec, unread, spec), wired(nodeStatus, wired(8, []byte("images")), status))
}

func TestProtobufDecodesLikeJSON(t *testing.T) {
	want := parseNode(t, aNode)
	var got node
	if err := got.Unmarshal(encode(t, want)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, &got, cmpopts.EquateEmpty()); diff != "" {
		t.Error("-want +got\n" + diff)
	}
	list := slices.Concat(wired(listMetadata, mustMarshal(t, &metav1.ListMeta{ResourceVersion: "7", Continue: "next"})),
		wired(listItems, encode(t, want)), wired(listItems, encode(t, parseNode(t, strings.ReplaceAll(aNode, "n1", "n2")))))
	var nodes nodeList
	if err := nodes.Unmarshal(list); err != nil {
		t.Fatal(err)
	}
	if len(nodes.Items) != 2 || nodes.Items[1].Name != "n2" || nodes.ResourceVersion != "7" || nodes.Continue != "next" {
		t.Errorf("got %+v, want len(Items) 2, Items[1].Name \"n2\", ResourceVersion \"7\", Continue \"next\"", nodes)
	}
}

// TestProtobufDecodesLikeClientGo guards against changes of the interface that apimachinery expects of protobuf types.
func TestProtobufDecodesLikeClientGo(t *testing.T) {
	scheme := runtime.NewScheme()
	registerNodeTypes(scheme)
	s := protobuf.NewSerializer(scheme, scheme)
	one := encode(t, parseNode(t, aNode))
	for kind, raw := range map[string][]byte{"Node": one, "NodeList": wired(listItems, one)} {
		unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: kind}, Raw: raw}
		data, err := unknown.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		o, _, err := s.Decode(append([]byte("k8s\x00"), data...), nil, nil)
		if err != nil {
			t.Error(kind, err)
			continue
		}
		var got *node
		switch o := o.(type) {
		case *node:
			got = o
		case *nodeList:
			got = &o.Items[0]
		}
		if got == nil || got.Name != "n1" || len(got.Status.Addresses) == 0 {
			t.Errorf("%s: got %+v", kind, o)
		}
	}
}

func mustMarshal(t testing.TB, m *metav1.ListMeta) []byte {
	t.Helper()
	b, err := m.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestMalformedProtobufIsAnError(t *testing.T) {
	whole := encode(t, parseNode(t, aNode))
	for name, b := range map[string][]byte{
		"cut short": whole[:len(whole)-1], "field 0": {0, 1}, "a group": {tag(1, protowire.StartGroupType)}, "a length beyond the end": {tag(2, protowire.BytesType), 5, 1},
		"an endless length": {tag(2, protowire.BytesType), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "half a number": {tag(4, protowire.VarintType), 0x80},
		"half of 8 bytes": {tag(4, protowire.Fixed64Type), 1, 2, 3}, "half of 4 bytes": {tag(4, protowire.Fixed32Type), 1, 2, 3}, "no value": {tag(1, protowire.BytesType)},
	} {
		if err := new(node).Unmarshal(b); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzProtobufNode(f *testing.F) {
	f.Add(encode(f, parseNode(f, aNode)))
	f.Add([]byte{tag(2, protowire.BytesType), 5, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		_ = new(nodeList).Unmarshal(data)
		var n, again node
		if n.Unmarshal(data) != nil {
			return
		}
		// A valid decoded node decodes the same after encoding.
		if err := again.Unmarshal(encode(t, &n)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(n.Spec, again.Spec, cmpopts.EquateEmpty()) + cmp.Diff(n.Status, again.Status, cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
	})
}

// BenchmarkNode compares decoding a Node of a common size from JSON and protobuf.
func BenchmarkNode(b *testing.B) {
	n := parseNode(b, aNode)
	image := wired(8, wired(1, []byte("registry.example/some/image@sha256:"+strings.Repeat("0", 64))))
	proto := append(encode(b, n), wired(nodeStatus, slices.Concat(slices.Repeat([][]byte{image}, 100)...))...)
	images := slices.Repeat([]map[string]any{{"names": []string{"registry.example/some/image@sha256:" + strings.Repeat("0", 64)}}}, 100)
	text, err := json.Marshal(map[string]any{"metadata": n.ObjectMeta, "spec": n.Spec, "status": map[string]any{"addresses": n.Status.Addresses, "images": images}})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("protobuf", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var n node
			if err := n.Unmarshal(proto); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var n node
			if err := json.Unmarshal(text, &n); err != nil {
				b.Fatal(err)
			}
		}
	})
}
