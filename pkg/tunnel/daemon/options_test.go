// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"runtime"
	"testing"
)

// TestSecondTunnelHasTheSameDefaults raises GOMAXPROCS for the first tunnel, which must not count as CPUs for the second.
func TestSecondTunnelHasTheSameDefaults(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	first := Options{Workers: AutoWorkers}.complete()
	raiseGOMAXPROCS(64, 4)
	if next := (Options{Workers: AutoWorkers}).complete(); next.Lanes != first.Lanes || next.Workers != first.Workers {
		t.Errorf("%d lanes and %d workers, before that %d and %d", next.Lanes, next.Workers, first.Lanes, first.Workers)
	}
}
