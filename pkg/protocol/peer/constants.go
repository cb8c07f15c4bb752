// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

// Limits of the protocol, in nanoseconds where they are times. The limits of the WireGuard paper,
// §6.1, table 1, are part of the protocol; the others are the Linux driver's
// (drivers/net/wireguard/messages.h).
const (
	// RekeyAfterMessages is the number of messages after which either side starts a new session (§6.2).
	RekeyAfterMessages = session.RekeyAfterMessages
	// RekeyAfterTime is the age at which a session's initiator starts a new one when it sends (§6.2).
	RekeyAfterTime = int64(120 * time.Second)
	// RejectAfterTime is the age from which a session is used for neither sending nor receiving (§6.2).
	RejectAfterTime = session.RejectAfterTime
	// RekeyAttemptTime is how long a handshake is retried before giving up (§6.4).
	RekeyAttemptTime = int64(90 * time.Second)
	// RekeyTimeout is the time after which an initiation is repeated, before jitter. No two initiations
	// to a peer are closer (§6.4).
	RekeyTimeout = int64(5 * time.Second)
	// KeepaliveTimeout is how long after received data a passive keepalive is sent if nothing else was (§6.5).
	KeepaliveTimeout = int64(10 * time.Second)
	// MaxJitter is the largest random time added to RekeyTimeout (a third of a second in the Linux
	// driver). It keeps two peers from retrying in lockstep.
	MaxJitter = int64(334 * time.Millisecond)
	// MinInitiationInterval is the minimum time between two initiations of one peer that are answered:
	// 50 per second (INITIATIONS_PER_SECOND of the Linux driver).
	MinInitiationInterval = int64(20 * time.Millisecond)
)

const (
	// newHandshakeTimeout is how long after sent data a new handshake is tried if nothing was received (§6.5).
	newHandshakeTimeout = KeepaliveTimeout + RekeyTimeout
	// rekeyOnReceiveAge is the session age at which its initiator, when it receives, starts a new
	// session. So a side that only receives does not lose the session at RejectAfterTime (§6.2).
	rekeyOnReceiveAge = RejectAfterTime - KeepaliveTimeout - RekeyTimeout
	// eraseTimeout is the time after the last new session at which all keys are erased (§6.3).
	eraseTimeout = 3 * RejectAfterTime
)
