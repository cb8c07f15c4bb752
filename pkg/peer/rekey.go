// SPDX-License-Identifier: Apache-2.0

package peer

// RekeyDue tells whether a session in use should be replaced (paper, §6.2). Lanes call it once per train and, when it
// holds, ask control, which calls Timers.HandshakeWanted; that limits the rate. created and initiator describe the
// session; sent is the number of messages sent on it; receiving tells whether the train was received or is to be sent.
//
// On sending, either side rekeys after RekeyAfterMessages, and the initiator after RekeyAfterTime. On receiving, only the
// initiator does, when the session is within 15 s of its end. A responder never rekeys by time: if both did, they would
// do it at once.
func RekeyDue(now, created int64, initiator bool, sent uint64, receiving bool) bool {
	age := now - created
	if receiving {
		return initiator && age >= lastMinute
	}
	return sent >= RekeyAfterMessages || initiator && age >= RekeyAfterTime
}
