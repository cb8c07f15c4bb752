// SPDX-License-Identifier: Apache-2.0

package peer

import "strings"

// Actions is a set of things that the owner of Timers must do, in the order of the constants.
type Actions uint8

// The actions.
const (
	// EraseSessions: wipe all sessions and handshakes of the peer (paper, §6.3).
	EraseSessions Actions = 1 << iota
	// GiveUp: drop the packets that wait for a handshake; it will not be retried until something wants it anew.
	GiveUp
	// ClearSource: forget the local address that the peer's endpoint was pinned to; it may be why nothing comes back.
	ClearSource
	// SendInitiation: send a handshake initiation, then call InitiationSent.
	SendInitiation
	// SendKeepalive: send a keepalive, or what is staged instead; without a session, ask HandshakeWanted.
	SendKeepalive
)

var actionNames = [...]string{"erase-sessions", "give-up", "clear-source", "send-initiation", "send-keepalive"}

// Has tells whether all of b are in a.
func (a Actions) Has(b Actions) bool { return a&b == b }

// String lists the actions, joined by "+"; "none" if there are none.
func (a Actions) String() string {
	var names []string
	for i, name := range actionNames {
		if a.Has(1 << i) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, "+")
}
