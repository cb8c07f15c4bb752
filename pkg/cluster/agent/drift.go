// SPDX-License-Identifier: Apache-2.0

package agent

import "sync/atomic"

// driftDetector tells changes of the cluster from changes that other programs made on the host.
type driftDetector struct {
	requested atomic.Uint64 // counts changes of the cluster
	handled   uint64        // requested, at the start of the last successful reconcile
}

// reportDrift counts and logs changes that reverted changes of other programs.
func (a *Agent) reportDrift(changes int) {
	if changes > 0 {
		a.stats.Drift.Add(uint64(changes))
		a.cfg.Log.Warn("repaired changes that another program made on the host", "repairs", changes)
	}
}
