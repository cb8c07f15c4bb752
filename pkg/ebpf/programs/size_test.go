// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/ropewalk/ropewalk/test/expect"
)

// TestProgramsStaySmall bounds the instructions of each program, which every packet of a device may pass. A larger bound needs a
// reason in the commit that raises it.
func TestProgramsStaySmall(t *testing.T) {
	bounds := map[string]int{"spread": 2810, "gather_tc": 3030, "gather_xdp": 2320, "filter_errors": 1240, "classify": 1140, "steer": 420, "guard_ethernet": 150, "guard_ip": 180, "guard_tunnel": 140}
	for _, load := range []func() (*ebpf.CollectionSpec, error){loadSpread, loadClassify, loadSteer, loadGuard} {
		spec, err := load()
		expect.NoError(t, err)
		for name, p := range spec.Programs {
			if n := len(p.Instructions); n > bounds[name] {
				t.Errorf("%s has %d instructions, want at most %d", name, n, bounds[name])
			}
		}
	}
}
