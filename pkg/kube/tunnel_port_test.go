// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/adopt"
)

func TestClusterTunnelPortIsFound(t *testing.T) {
	cilium, flannel := adopt.Tunnel{Name: "cilium_wg0", Port: 51871}, adopt.Tunnel{Name: "flannel-wg", Port: 51820}
	mine, user := adopt.Tunnel{Name: "wg0", Port: 1000}, adopt.Tunnel{Name: "wg1", Port: 2000, Userspace: true}
	for _, c := range []struct {
		name    string
		tunnels []adopt.Tunnel
		port    uint16
		err     string
	}{
		{"Cilium's among others", []adopt.Tunnel{mine, cilium}, 51871, ""},
		{"flannel's", []adopt.Tunnel{flannel, user}, 51820, ""},
		{"the only one", []adopt.Tunnel{user, mine}, 1000, ""},
		{"none", []adopt.Tunnel{user}, 0, "the node has no kernel WireGuard device: set the port of the tunnel to spread (--port)"},
		{
			"two of unknown names",
			[]adopt.Tunnel{mine, {Name: "wg2", Port: 3000}},
			0,
			"found several WireGuard devices (wg0 on 1000, wg2 on 3000): set the port of the tunnel to spread (--port)",
		},
		{"one that does not listen", []adopt.Tunnel{mine, {Name: "wg2"}}, 1000, ""},
	} {
		port, err := clusterPort(c.tunnels)
		if port != c.port || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("%s: %d, %v", c.name, port, err)
		}
	}
}
