// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"net/netip"
	"testing"
)

func TestPodEndsHaveNoSubnet(t *testing.T) {
	for _, tt := range []struct {
		name, kind string
		addresses  []string
		want       bool
	}{
		{"NIC", "device", []string{"192.0.2.1/24"}, false},
		{"NIC without address", "device", nil, false},
		{"NIC with a single address", "device", []string{"192.0.2.1/32"}, false},
		{"bridge of pods", "bridge", []string{"10.1.0.1/24"}, false},
		{"pod's veth", "veth", nil, true},
		{"pod's veth with link-local address", "veth", []string{"fe80::1/64", "169.254.0.1/16"}, true},
		{"pod's veth with gateway address", "veth", []string{"10.1.0.1/32", "fd00::1/128"}, true},
		{"pod's netkit", "netkit", []string{"fe80::1/64"}, true},
		{"veth of a node in a container", "veth", []string{"fe80::1/64", "192.0.2.1/24"}, false},
		{"veth of an IPv6 node in a container", "veth", []string{"fd00::1/64"}, false},
		{"netkit of a node in a container", "netkit", []string{"192.0.2.1/24"}, false},
	} {
		var addresses []netip.Prefix
		for _, a := range tt.addresses {
			addresses = append(addresses, netip.MustParsePrefix(a))
		}
		if got := IsPodEnd(tt.kind, addresses); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}
