// SPDX-License-Identifier: Apache-2.0

package agent

import "fmt"

// state is the source of the desired state that an agent applies.
type state uint8

const (
	// stateSyncing: the informers do not have the whole cluster yet. The persisted state applies.
	stateSyncing state = iota
	// stateResumed: the informers have synced, but the API has not had this node's objects yet. The persisted state applies.
	stateResumed
	// stateReconciling: the cluster supplies the desired state.
	stateReconciling
	// stateHolding: the API does not have this node's objects any more. The last desired state applies.
	stateHolding
	// stateLeaving: the agent has stopped. It is final.
	stateLeaving
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
		a.cfg.Log.Debug("agent state changed", "from", a.state.String(), "to", next.String(), "desired_state_source", next.source())
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

// source names the source of the desired state, for logs.
func (s state) source() string {
	switch s {
	case stateSyncing, stateResumed:
		return "saved state"
	case stateReconciling:
		return "cluster"
	case stateHolding:
		return "last state"
	default:
		return "none"
	}
}

// String returns the state's name, for logs.
func (s state) String() string {
	switch s {
	case stateSyncing:
		return "syncing"
	case stateResumed:
		return "resumed"
	case stateReconciling:
		return "reconciling"
	case stateHolding:
		return "holding"
	case stateLeaving:
		return "leaving"
	default:
		return fmt.Sprintf("state(%d)", uint8(s))
	}
}
