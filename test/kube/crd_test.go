// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"maps"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

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
	client := a.dynamic.Resource(rwnodes)
	good := map[string]any{
		"mode": "mesh", "optOut": true, "endpoint": "2001:db8::1", "port": int64(51820), "mtu": int64(8921), "keyGeneration": int64(2),
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "ropewalk.io/v1alpha1", "kind": "RopewalkNode", "metadata": map[string]any{"name": "n1"}, "spec": good,
	}}
	_, err := client.Create(t.Context(), o, metav1.CreateOptions{})
	expect.NoError(a, err)
	key := strings.Repeat("A", 42) + "E="
	goodStatus := map[string]any{
		"mode": "spread", "publicKey": key, "endpoints": []any{"192.0.2.1:51820", "[2001:db8::1]:51820"},
		"podCIDRs": []any{"10.244.0.0/24", "2001:db8::/64"}, "spreadPorts": map[string]any{"first": int64(61000), "last": int64(61999)},
		"gathers": true, "peers": int64(3), "mtu": int64(1420), "plans": []any{planned("IPv4", 61007, 61000), planned("IPv6", 61001)},
	}
	try := func(part string, fields map[string]any) error {
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "ropewalk.io/v1alpha1", "kind": "RopewalkNode", "metadata": map[string]any{"name": "n1"}, part: fields,
		}}
		options := metav1.ApplyOptions{FieldManager: "test", Force: true}
		if part == "status" {
			_, err := client.ApplyStatus(t.Context(), "n1", o, options)
			return err
		}
		_, err := client.Apply(t.Context(), "n1", o, options)
		return err
	}
	expect.NoError(a, try("spec", good))
	expect.NoError(a, try("status", goodStatus))
	for _, c := range []struct {
		part, field string
		value       any
	}{
		{"spec", "mode", "both"},
		{"spec", "endpoint", "example.org"},
		{"spec", "endpoint", "192.0.2.1:51820"},
		{"spec", "port", int64(0)},
		{"spec", "port", int64(65536)},
		{"spec", "mtu", int64(575)},
		{"spec", "keyGeneration", int64(1)}, // it was 2
		{"spec", "unknown", "field"},
		{"status", "publicKey", "not a key"},
		{"status", "publicKey", key[:43]},
		{"status", "publicKey", strings.Repeat("A", 42) + "B="}, // bits beyond the key's
		{"status", "nextPublicKey", key},                        // equal to publicKey
		{"status", "endpoints", []any{"example.org:1"}},
		{"status", "endpoints", []any{"192.0.2.1"}},
		{"status", "podCIDRs", []any{"10.244.0.0"}},
		{"status", "spreadPorts", map[string]any{"first": int64(2000), "last": int64(1999)}},
		{"status", "spreadPorts", map[string]any{"first": int64(80), "last": int64(1999)}},
		{"status", "peers", int64(-1)},
		{"status", "plans", []any{planned("IPv4", 61000, 61001, 61000)}},
		{"status", "plans", []any{planned("IPv4", 61000), planned("IPv4", 61001)}},
		{"status", "plans", []any{planned("IPv5", 61000)}},
		{"status", "plans", []any{planned("IPv4", 53)}},
		{"status", "plans", []any{planned("IPv4", 65536)}},
		{"status", "plans", []any{planned("IPv4")}},
		{"status", "plans", []any{planned("IPv4", portsFrom(61000, 65)...)}},
	} {
		fields := maps.Clone(good)
		if c.part == "status" {
			fields = maps.Clone(goodStatus)
		}
		fields[c.field] = c.value
		if err := try(c.part, fields); err == nil {
			t.Errorf("%s.%s = %v was accepted", c.part, c.field, c.value)
		} else if !apierrors.IsInvalid(err) && !strings.Contains(err.Error(), "failed to create typed patch object") { // rejected by the schema
			t.Errorf("%s.%s = %v: got error %v", c.part, c.field, c.value, err)
		}
	}
}
