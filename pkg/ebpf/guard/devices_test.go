// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"net/netip"
	"testing"
)

func TestGuardedDevicesLeaveTheNode(t *testing.T) {
	subnet, host := netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("10.1.0.1/32")
	for _, tt := range []struct {
		name string
		d    device
		want bool
	}{
		{"NIC", device{kind: "device", addresses: []netip.Prefix{subnet}}, true},
		{"NIC without address", device{kind: "device"}, true},
		{"loopback", device{kind: "device", loopback: true}, false},
		{"bridge", device{kind: "bridge", addresses: []netip.Prefix{subnet}}, false},
		{"dummy", device{kind: "dummy", addresses: []netip.Prefix{host}}, false},
		{"ifb", device{kind: "ifb"}, false},
		{"bond", device{kind: "bond"}, true},
		{"VLAN", device{kind: "vlan"}, true},
		{"macvlan", device{kind: "macvlan"}, true},
		{"VXLAN", device{kind: "vxlan"}, true},
		{"Geneve", device{kind: "geneve"}, true},
		{"IPIP", device{kind: "ipip"}, true},
		{"WireGuard", device{kind: "wireguard"}, true},
		{"another TUN", device{kind: "tuntap"}, true},
		{"pod's veth", device{kind: "veth"}, false},
		{"pod's netkit", device{kind: "netkit"}, false},
		{"veth of a node in a container", device{kind: "veth", addresses: []netip.Prefix{subnet}}, true},
	} {
		if got := tt.d.leavesNode(); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}
