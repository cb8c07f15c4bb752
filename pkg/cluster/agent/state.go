// SPDX-License-Identifier: Apache-2.0

package agent

// state says from where an agent has the desired state that it applies.
type state string

const (
	// stateSyncing: the informers do not have the whole cluster yet. The persisted state applies.
	stateSyncing state = "syncing"
	// stateResumed: the informers have synced, but the API has not had this node's objects yet. The persisted state applies.
	stateResumed state = "resumed"
	// stateReconciling: the cluster supplies the desired state.
	stateReconciling state = "reconciling"
	// stateHolding: the API does not have this node's objects any more. The last desired state applies.
	stateHolding state = "holding"
	// stateLeaving: the agent has stopped. It is final.
	stateLeaving state = "leaving"
)

// event changes the state of an agent.
type event uint8

const (
	eventSynced      event = iota // the informers have synced
	eventNodeMissing              // the API does not have this node, no RopewalkNode of it, or not all fields
	eventNodeKnown                // the API has this node's objects
	eventStopped                  // the context of Run has ended
)

// advance applies an event to the agent's state.
func (a *Agent) advance(e event) {
	next := a.state.next(e)
	if next != a.state {
		a.cfg.Log.Debug("agent state changed", "from", a.state, "to", next)
	}
	a.state = next
}

// next returns the state after an event. It is the only transition function. An event that means nothing in a state leaves it.
func (s state) next(e event) state {
	switch {
	case s == stateLeaving, e == eventStopped:
		return stateLeaving
	case s == stateSyncing && e == eventSynced:
		return stateResumed
	case s == stateSyncing: // an object that the informers do not have yet is not missing
		return stateSyncing
	case e == eventNodeKnown:
		return stateReconciling
	case s == stateReconciling && e == eventNodeMissing:
		return stateHolding
	default:
		return s
	}
}
