// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestAgentsSpreadForeignWireGuardTunnels is spread mode end to end. The kernel's WireGuard is configured as Cilium and flannel
// (k3s) do it, and does not know of ropewalk.
func TestAgentsSpreadForeignWireGuardTunnels(t *testing.T) {
	for _, c := range []cni{
		{"cilium_wg0", 51871, "0xe00"},
		{"flannel-wg", 51820, "0"},
	} {
		t.Run(c.device, func(t *testing.T) {
			u := newTunnels(t, c)
			agents := u.startAgents()
			expect.NoError(u, u.cross(u.a, u.b).shook()) // the first handshake passes the programs
			u.cross(u.b, u.a)

			for _, a := range agents {
				a.kill()
			}
			u.wantAttached()
			u.a.forgets(u.b)
			u.a.knows(u.b)
			expect.NoError(u, u.cross(u.a, u.b).shook())
		})
	}
}

// wantAttached fails unless the programs of both nodes are attached.
func (t *tunnels) wantAttached() {
	t.Helper()
	for _, n := range []*testNode{t.a, t.b} {
		var all []spreader.DeviceStatus
		expect.NoError(t, n.host.Do(func() (err error) {
			all, err = (&spreader.Host{FS: n.bpf}).Status(t.Context(), "")
			return err
		}))
		attached := hook.Attached.String()
		if !slices.ContainsFunc(all, func(d spreader.DeviceStatus) bool {
			return d.Device == n.device && d.Spread.State == attached && d.Gather.State == attached && len(d.Problems) == 0
		}) {
			t.Errorf("attached on %s: %+v", n.name, all)
		}
	}
}
