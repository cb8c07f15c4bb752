// SPDX-License-Identifier: Apache-2.0

package peer

// RekeyDue reports whether a session in use should be replaced (paper, §6.2). Lanes call it once per train. When it
// returns true, they notify the control goroutine, which calls Timers.HandshakeWanted; that limits the rate. created
// and initiator describe the session; sent is the number of messages sent on it. receiving is set for a received
// train.
//
// On sending, either side rekeys after RekeyAfterMessages, and the initiator after RekeyAfterTime. On receiving, only
// the initiator does, when the session is within 15 s of its end. A responder never rekeys by time: otherwise both
// would do so simultaneously.
func RekeyDue(now, created int64, initiator bool, sent uint64, receiving bool) bool {
	age := now - created
	if receiving {
		return initiator && age >= rekeyOnReceiveAge
	}
	return sent >= RekeyAfterMessages || initiator && age >= RekeyAfterTime
}
