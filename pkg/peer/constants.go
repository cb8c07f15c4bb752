// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/session"
)

// Limits of the protocol, in nanoseconds where they are times. Those of WireGuard paper, §6.1, table 1, are law between
// peers; the others are the Linux driver's (drivers/net/wireguard/messages.h).
const (
	// RekeyAfterMessages is the number of messages after which either side wants a new session (§6.2).
	RekeyAfterMessages = session.RekeyAfterMessages
	// RejectAfterMessages is the number of messages a session may carry (§6.2).
	RejectAfterMessages = session.RejectAfterMessages
	// RekeyAfterTime is the age at which a session's initiator wants a new one, when it sends (§6.2).
	RekeyAfterTime = int64(120 * time.Second)
	// RejectAfterTime is the age from which a session is neither sent on nor believed (§6.2).
	RejectAfterTime = session.RejectAfterTime
	// RekeyAttemptTime is how long a handshake is retried before the peer is given up (§6.4).
	RekeyAttemptTime = int64(90 * time.Second)
	// RekeyTimeout is the time between initiations, before jitter, and the shortest there may be (§6.4).
	RekeyTimeout = int64(5 * time.Second)
	// KeepaliveTimeout is how long received data may stay without anything sent back (§6.5).
	KeepaliveTimeout = int64(10 * time.Second)
	// CookieRefresh is the age at which a cookie, and the secret it is made from, is renewed (§5.4.7).
	CookieRefresh = int64(120 * time.Second)
	// MaxJitter is the most that is added to RekeyTimeout, lest two peers retry in step for ever (a third of a second in
	// the Linux driver).
	MaxJitter = int64(334 * time.Millisecond)
	// HandshakeInitiationRate is the shortest time between two initiations that one peer may have answered: 50 per
	// second (INITIATIONS_PER_SECOND of the Linux driver).
	HandshakeInitiationRate = int64(20 * time.Millisecond)
)

const (
	// hearBackTimeout is how long data sent may stay without anything received before a new handshake is tried (§6.5).
	hearBackTimeout = KeepaliveTimeout + RekeyTimeout
	// lastMinute is the session age at which its initiator, hearing from the peer, wants a new one, so that one that only
	// receives is not cut off at RejectAfterTime (§6.2).
	lastMinute = RejectAfterTime - KeepaliveTimeout - RekeyTimeout
	// eraseTimeout is how long keys outlive the last new session (§6.3).
	eraseTimeout = 3 * RejectAfterTime
)
