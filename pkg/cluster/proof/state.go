// SPDX-License-Identifier: Apache-2.0

package proof

// State is a node's observation of a peer.
type State uint8

// The states.
const (
	Pending   State = iota // no answer yet, and too early to miss one
	Reachable              // a session was proved in both directions
	Proven                 // so were the routes: a datagram was answered
	Lost                   // no answer to several questions
)

func (s State) String() string {
	return [...]string{"Pending", "Reachable", "Proven", "Lost"}[s]
}

// event is a cause of a change of state.
type event uint8

const (
	heard      event = iota // a handshake, or an answered probe
	proved                  // an answered datagram
	unproved                // the peer was heard, but answered no datagram
	unheard                 // it answered nothing
	unheardYet              // the same, so early that it may not have the key yet
	eventCount
)

// after returns the state after an event. It is the only transition function.
func (s State) after(e event) State {
	switch e {
	case proved:
		return Proven
	case unproved:
		return Reachable
	case unheard:
		return Lost
	case heard:
		if s != Proven {
			return Reachable
		}
	}
	return s
}
