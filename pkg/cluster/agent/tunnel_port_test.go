// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
)

func TestClusterTunnelPortIsFound(t *testing.T) {
	cilium, flannel := spreader.Tunnel{Name: "cilium_wg0", Port: 51871}, spreader.Tunnel{Name: "flannel-wg", Port: 51820}
	mine, user := spreader.Tunnel{Name: "wg0", Port: 1000}, spreader.Tunnel{Name: "wg1", Port: 2000, Userspace: true}
	for _, c := range []struct {
		name    string
		tunnels []spreader.Tunnel
		port    uint16
		err     string
	}{
		{"Cilium's among others", []spreader.Tunnel{mine, cilium}, 51871, ""},
		{"flannel's", []spreader.Tunnel{flannel, user}, 51820, ""},
		{"the only one", []spreader.Tunnel{user, mine}, 1000, ""},
		{"none", []spreader.Tunnel{user}, 0, "the node has no kernel WireGuard device: set the port of the tunnel to spread (--port)"},
		{
			"two of unknown names",
			[]spreader.Tunnel{mine, {Name: "wg2", Port: 3000}},
			0,
			"found several WireGuard devices (wg0 on 1000, wg2 on 3000): set the port of the tunnel to spread (--port)",
		},
		{"one that does not listen", []spreader.Tunnel{mine, {Name: "wg2"}}, 1000, ""},
	} {
		port, err := clusterPort(c.tunnels)
		if port != c.port || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("%s: got %d, error %v, want %d", c.name, port, err, c.port)
		}
	}
}
