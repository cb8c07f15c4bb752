// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/test/expect"
)

// planned returns a plan as unstructured data.
func planned(family string, ports ...int64) map[string]any {
	all := []any{}
	for _, p := range ports {
		all = append(all, p)
	}
	return map[string]any{"ipFamily": family, "ports": all}
}

func portsFrom(first int64, n int) (ports []int64) {
	for i := range n {
		ports = append(ports, first+int64(i))
	}
	return ports
}

func TestCRDValidation(t *testing.T) {
	a := startAPI(t)
	client, announcements := a.dynamic.Resource(rwnodes), a.dynamic.Resource(rwannouncements)
	good := map[string]any{
		"endpoint": "2001:db8::1", "port": int64(51820), "keyGeneration": int64(2),
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "ropewalk.io/v1alpha1", "kind": "RopewalkNode", "metadata": map[string]any{"name": "n1"}, "spec": good,
	}}
	_, err := client.Create(t.Context(), o, metav1.CreateOptions{})
	expect.NoError(a, err)
	key := strings.Repeat("A", 42) + "E="
	goodStatus := map[string]any{"peers": int64(3), "writer": "w"}
	goodAnnouncement := map[string]any{
		"mode": "spread", "publicKey": key, "endpoints": []any{"192.0.2.1:51820", "[2001:db8::1]:51820"},
		"podCIDRs": []any{"10.244.0.0/24", "2001:db8::/64"}, "spreadPorts": map[string]any{"first": int64(61000), "last": int64(61999)},
		"gathers": true, "mtu": int64(1420), "plans": []any{planned("IPv4", 61007, 61000), planned("IPv6", 61001)},
	}
	try := func(part string, fields map[string]any) error {
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "ropewalk.io/v1alpha1", "kind": "RopewalkNode", "metadata": map[string]any{"name": "n1"}, part: fields,
		}}
		options := metav1.ApplyOptions{FieldManager: "test", Force: true}
		switch part {
		case "status":
			_, err := client.ApplyStatus(t.Context(), "n1", o, options)
			return err
		case "announcement":
			o.SetKind("RopewalkAnnouncement")
			delete(o.Object, part)
			o.Object["spec"] = fields
			_, err := announcements.Apply(t.Context(), "n1", o, options)
			return err
		}
		_, err := client.Apply(t.Context(), "n1", o, options)
		return err
	}
	expect.NoError(a, try("spec", good))
	expect.NoError(a, try("status", goodStatus))
	expect.NoError(a, try("announcement", goodAnnouncement))
	for _, c := range []struct {
		part, field string
		value       any
	}{
		{"spec", "endpoint", "example.org"},
		{"spec", "endpoint", "192.0.2.1:51820"},
		{"spec", "port", int64(0)},
		{"spec", "port", int64(65536)},
		{"spec", "mtu", int64(1400)},
		{"spec", "optOut", true},
		{"spec", "keyGeneration", int64(1)}, // it was 2
		{"spec", "unknown", "field"},
		{"announcement", "publicKey", "not a key"},
		{"announcement", "publicKey", key[:43]},
		{"announcement", "publicKey", strings.Repeat("A", 42) + "B="}, // bits beyond the key's
		{"announcement", "nextPublicKey", key},                        // equal to publicKey
		{"announcement", "endpoints", []any{"example.org:1"}},
		{"announcement", "endpoints", []any{"192.0.2.1"}},
		{"announcement", "podCIDRs", []any{"10.244.0.0"}},
		{"announcement", "spreadPorts", map[string]any{"first": int64(2000), "last": int64(1999)}},
		{"announcement", "spreadPorts", map[string]any{"first": int64(80), "last": int64(1999)}},
		{"announcement", "unknown", "field"},
		{"status", "publicKey", key}, // it is in the announcement
		{"status", "peers", int64(-1)},
		{"announcement", "plans", []any{planned("IPv4", 61000, 61001, 61000)}},
		{"announcement", "plans", []any{planned("IPv4", 61000), planned("IPv4", 61001)}},
		{"announcement", "plans", []any{planned("IPv5", 61000)}},
		{"announcement", "plans", []any{planned("IPv4", 53)}},
		{"announcement", "plans", []any{planned("IPv4", 65536)}},
		{"announcement", "plans", []any{planned("IPv4")}},
		{"announcement", "plans", []any{planned("IPv4", portsFrom(61000, 65)...)}},
	} {
		fields := maps.Clone(good)
		switch c.part {
		case "status":
			fields = maps.Clone(goodStatus)
		case "announcement":
			fields = maps.Clone(goodAnnouncement)
		}
		fields[c.field] = c.value
		if err := try(c.part, fields); err == nil {
			t.Errorf("%s.%s = %v was accepted", c.part, c.field, c.value)
		} else if !apierrors.IsInvalid(err) && !strings.Contains(err.Error(), "failed to create typed patch object") { // rejected by the schema
			t.Errorf("%s.%s = %v: got error %v", c.part, c.field, c.value, err)
		}
	}
}

// newPeer returns a RopewalkPeer as unstructured data.
func newPeer(name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "ropewalk.io/v1alpha1", "kind": "RopewalkPeer", "metadata": map[string]any{"name": name}, "spec": spec,
	}}
}

func TestRopewalkPeerValidation(t *testing.T) {
	a := startAPI(t)
	client := a.dynamic.Resource(rwpeers)
	options := metav1.ApplyOptions{FieldManager: "test", Force: true}
	good := map[string]any{
		"publicKey": strings.Repeat("A", 42) + "E=", "allowedIPs": []any{"10.9.0.2/32", "10.8.0.0/16", "2001:db8:9::/64"}, "endpoint": "vpn.example.org:51820",
		"persistentKeepalive": int64(25), "nodeSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/hostname": "node-1", "node-role.kubernetes.io/gateway": ""}},
	}
	_, err := client.Apply(t.Context(), "p", newPeer("p", good), options)
	expect.NoError(a, err)
	many := []any{}
	for i := range 65 {
		many = append(many, fmt.Sprintf("10.9.1.%d/32", i))
	}
	for _, c := range []struct {
		field string
		value any
		ok    bool
	}{
		{"endpoint", "192.0.2.1:1", true},
		{"endpoint", "[2001:db8::1]:65535", true},
		{"endpoint", "192.0.2.1", false},
		{"endpoint", "192.0.2.1:0", false},
		{"endpoint", "192.0.2.1:65536", false},
		{"endpoint", "192.0.2.256:1", false},
		{"endpoint", "[192.0.2.1.1]:1", false},
		{"endpoint", "[fe80::1%eth0]:1", false},
		{"endpoint", "2001:db8::1:51820", false},
		{"endpoint", "a b:1", false},
		{"publicKey", "key", false},
		{"publicKey", nil, false},
		{"allowedIPs", []any{}, false},
		{"allowedIPs", nil, false},
		{"allowedIPs", many, false},
		{"allowedIPs", []any{"10.9.0.2"}, false},
		{"allowedIPs", []any{"10.9.0.2/24"}, false},
		{"allowedIPs", []any{"0.0.0.0/0"}, false},
		{"allowedIPs", []any{"2000::/3"}, false},
		{"allowedIPs", []any{"::ffff:10.9.0.2/128"}, false},
		{"allowedIPs", []any{"10.9.0.2/32", "10.9.0.2/32"}, false},
		{"persistentKeepalive", int64(-1), false},
		{"persistentKeepalive", int64(65536), false},
		{"nodeSelector", map[string]any{"a": "b"}, false},
		{"nodeSelector", map[string]any{"matchLabels": map[string]any{"a": strings.Repeat("x", 64)}}, false},
		{"postQuantum", "Required", true},
		{"postQuantum", "off", false},
		{"presharedKey", "secret", false},
	} {
		spec := maps.Clone(good)
		if spec[c.field] = c.value; c.value == nil {
			delete(spec, c.field)
		}
		_, err := client.Apply(t.Context(), "p", newPeer("p", spec), options)
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "spec."+c.field) {
			t.Errorf("%s = %v: got %v", c.field, c.value, err)
		}
	}
	delete(good, "nodeSelector")
	_, err = client.Create(t.Context(), newPeer(strings.Repeat("x", 64), good), metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "63 characters") {
		t.Errorf("a long name: got %v", err)
	}
}

// rejectedFields returns the fields that the API server names in an error.
func rejectedFields(err error) (fields []string) {
	var status *apierrors.StatusError
	if !errors.As(err, &status) || !apierrors.IsInvalid(err) || status.ErrStatus.Details == nil {
		return nil
	}
	for _, c := range status.ErrStatus.Details.Causes {
		if c.Field != "<nil>" { // the whole object: rules were not evaluated
			fields = append(fields, c.Field)
		}
	}
	return fields
}

// requirement returns a requirement of a selector as unstructured data.
func requirement(key, operator string, values ...any) map[string]any {
	r := map[string]any{"key": key, "operator": operator}
	if values != nil {
		r["values"] = values
	}
	return r
}

func TestRopewalkMeshValidation(t *testing.T) {
	a := startAPI(t)
	client := a.dynamic.Resource(rwmeshes)
	options := metav1.ApplyOptions{FieldManager: "test", Force: true}
	selector := func(field string, value any) map[string]any { return map[string]any{field: value} }
	expressions := func(all ...any) map[string]any { return selector("matchExpressions", all) }
	pools := func(field string, value any) []any { return []any{map[string]any{field: value}} }
	nodes := func(more map[string]any) map[string]any {
		all := map[string]any{"enabled": true, "nodeCIDRs": []any{"192.0.2.0/24", "2001:db8::/64"}}
		maps.Copy(all, more)
		return all
	}
	restricted := v1alpha1.RestrictedPrefix + "mesh"
	good := map[string]any{
		"cleartext": "Never", "podCIDRs": []any{"10.244.0.0/16", "fd00:244::/48"}, "serviceCIDRs": []any{"10.96.0.0/12"},
		"nodeEncryption": nodes(map[string]any{
			"clearPorts": []any{"192.0.2.10:8443", "192.0.2.0/24:53", "[2001:db8::/64]:53", "[2001:db8::1]:1"}, "clearNodes": selector("matchLabels", map[string]any{"node-role.kubernetes.io/control-plane": ""}),
		}),
		"exclude": map[string]any{"nodeNames": []any{"n1"}, "nodeSelector": expressions(requirement(restricted, "In", "no"), requirement(restricted, "Exists"))},
		"pools": []any{
			map[string]any{
				"nodeSelector": map[string]any{
					"matchLabels":      map[string]any{"pool": "a", "node-role.kubernetes.io/gateway": ""},
					"matchExpressions": []any{requirement("zone", "In", "x", "y"), requirement("example.org/slow", "DoesNotExist")},
				},
				"port": int64(51820), "mtu": int64(8921), "persistentKeepalive": int64(25), "underlay": "udp",
			},
			map[string]any{"mtu": int64(1280)},
		},
	}
	for _, spec := range []map[string]any{good, {}} {
		_, err := client.Apply(t.Context(), "default", newMeshObject("default", spec), options)
		expect.NoError(a, err)
	}
	if o, err := client.Get(t.Context(), "default", metav1.GetOptions{}); err != nil || fmt.Sprint(o.Object["spec"]) != "map[cleartext:Auto]" {
		t.Errorf("an empty spec is %v, %v", o.Object["spec"], err)
	}
	many := map[string]any{}
	for i := range 17 {
		many[fmt.Sprint("k", i)] = ""
	}
	const atPool = "spec.pools[0].nodeSelector"
	for _, c := range []struct {
		field string
		value any
		want  string // the field that the API server names
	}{
		{"cleartext", "never", "spec.cleartext"},
		{"podCIDRs", nil, "spec"},
		{"podCIDRs", []any{}, "spec"},
		{"podCIDRs", []any{"10.244.0.0"}, "spec.podCIDRs[0]"},
		{"podCIDRs", []any{"10.100.0.0/16"}, "spec"}, // in serviceCIDRs
		{"serviceCIDRs", []any{"10.0.0.0/8"}, "spec"},
		{"serviceCIDRs", []any{"192.0.2.0/28"}, "spec"},
		{"podCIDRs", []any{"192.0.0.0/8"}, "spec"},
		{"nodeEncryption", map[string]any{"enabled": true}, "spec.nodeEncryption"},
		{"nodeEncryption", nodes(map[string]any{"clearPorts": []any{"8443"}}), "spec.nodeEncryption.clearPorts[0]"},
		{"nodeEncryption", nodes(map[string]any{"clearPorts": []any{"192.0.2.1:65536"}}), "spec.nodeEncryption.clearPorts[0]"},
		{"nodeEncryption", nodes(map[string]any{"clearPorts": []any{"192.0.2.256:1"}}), "spec.nodeEncryption.clearPorts[0]"},
		{"exclude", map[string]any{"nodeSelector": map[string]any{}}, "spec.exclude.nodeSelector"},
		{"exclude", map[string]any{"nodeSelector": selector("matchLabels", map[string]any{"pool": "a"})}, "spec.exclude.nodeSelector"},
		{"exclude", map[string]any{"nodeSelector": expressions(requirement("pool", "Exists"))}, "spec.exclude.nodeSelector"},
		{"exclude", map[string]any{"nodeSelector": expressions(requirement(restricted, "DoesNotExist"))}, "spec.exclude.nodeSelector"},
		{"pools", pools("nodeSelector", selector("matchLabels", map[string]any{"a b": ""})), atPool + ".matchLabels"},
		{"pools", pools("nodeSelector", selector("matchLabels", map[string]any{"a": strings.Repeat("x", 64)})), atPool + ".matchLabels.a"},
		{"pools", pools("nodeSelector", selector("matchLabels", many)), atPool + ".matchLabels"},
		{"pools", pools("nodeSelector", expressions(requirement("a", "Equals", "x"))), atPool + ".matchExpressions[0].operator"},
		{"pools", pools("nodeSelector", expressions(requirement("a/b/c", "Exists"))), atPool + ".matchExpressions[0].key"},
		{"pools", pools("nodeSelector", expressions(requirement("a", "Exists"), requirement("a", "In"))), atPool + ".matchExpressions[1]"},
		{"pools", pools("port", int64(0)), "spec.pools[0].port"},
		{"pools", pools("port", int64(65536)), "spec.pools[0].port"},
		{"pools", pools("mtu", int64(1279)), "spec.pools[0].mtu"},
		{"pools", pools("persistentKeepalive", int64(-1)), "spec.pools[0].persistentKeepalive"},
		{"pools", pools("underlay", "tcp"), "spec.pools[0].underlay"},
	} {
		spec := maps.Clone(good)
		if spec[c.field] = c.value; c.value == nil {
			delete(spec, c.field)
		}
		_, err := client.Apply(t.Context(), "default", newMeshObject("default", spec), options)
		got := slices.Compact(slices.Sorted(slices.Values(rejectedFields(err))))
		if len(got) > 1 && got[0] == "spec" { // rules that compare prefixes fail, too, on one that is none
			got = got[1:]
		}
		if !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s = %v: the API server names %v, want %s: %v", c.field, c.value, got, c.want, err)
		}
	}
	_, err := client.Create(t.Context(), newMeshObject("second", good), metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "has the name default") {
		t.Errorf("another name: %v", err)
	}
}
