// SPDX-License-Identifier: Apache-2.0

package peer

import "strings"

// Actions is a set of actions that the owner of Timers must take, in the order of the constants.
type Actions uint8

// The actions.
const (
	// EraseSessions: wipe all sessions and handshakes of the peer (paper, §6.3).
	EraseSessions Actions = 1 << iota
	// GiveUp: drop the packets staged for the handshake; it is not retried until HandshakeWanted is called again.
	GiveUp
	// ClearSource: clear the source address cached for the peer's endpoint; it may be why no reply arrives.
	ClearSource
	// SendInitiation: send a handshake initiation, then call InitiationSent.
	SendInitiation
	// SendKeepalive: send staged packets, or else a keepalive; without a session, call HandshakeWanted.
	SendKeepalive
)

var actionNames = [...]string{"erase-sessions", "give-up", "clear-source", "send-initiation", "send-keepalive"}

// Has reports whether a contains all of b.
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
