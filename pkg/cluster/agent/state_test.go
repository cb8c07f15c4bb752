// SPDX-License-Identifier: Apache-2.0

package agent

import "testing"

// TestStateTransitions covers all pairs of state and event.
func TestStateTransitions(t *testing.T) {
	const syncing, resumed, reconciling, holding, leaving = stateSyncing, stateResumed, stateReconciling, stateHolding, stateLeaving
	for from, want := range map[state]map[event]state{
		syncing:     {eventSynced: resumed, eventNodeMissing: syncing, eventNodeKnown: syncing, eventStopped: leaving},
		resumed:     {eventSynced: resumed, eventNodeMissing: resumed, eventNodeKnown: reconciling, eventStopped: leaving},
		reconciling: {eventSynced: reconciling, eventNodeMissing: holding, eventNodeKnown: reconciling, eventStopped: leaving},
		holding:     {eventSynced: holding, eventNodeMissing: holding, eventNodeKnown: reconciling, eventStopped: leaving},
		leaving:     {eventSynced: leaving, eventNodeMissing: leaving, eventNodeKnown: leaving, eventStopped: leaving},
	} {
		for e := eventSynced; e <= eventStopped; e++ {
			if got := from.next(e); got != want[e] {
				t.Errorf("event %d in state %s leads to %s, want %s", e, from, got, want[e])
			}
		}
	}
}
