// SPDX-License-Identifier: Apache-2.0

package device

import "sync/atomic"

// HandshakeStats counts the handshakes of all peers, by our role. What is refused is counted as a drop, by its reason.
type HandshakeStats struct {
	Initiated uint64 `json:"initiated"` // initiations sent, those of retries too
	Completed uint64 `json:"completed"` // of them, answered
	GaveUp    uint64 `json:"gave_up"`   // attempts of 90 s without an answer
	Answered  uint64 `json:"answered"`  // responses sent
	Confirmed uint64 `json:"confirmed"` // of them, whose session the initiator has used
}

// handshakeCounters is what HandshakeStats is a snapshot of.
type handshakeCounters struct{ initiated, completed, gaveUp, answered, confirmed atomic.Uint64 }

func (c *handshakeCounters) snapshot() HandshakeStats {
	return HandshakeStats{
		Initiated: c.initiated.Load(), Completed: c.completed.Load(), GaveUp: c.gaveUp.Load(),
		Answered: c.answered.Load(), Confirmed: c.confirmed.Load(),
	}
}

// resumeSession begins with what another device has counted.
func (c *handshakeCounters) resume(before HandshakeStats) {
	c.initiated.Add(before.Initiated)
	c.completed.Add(before.Completed)
	c.gaveUp.Add(before.GaveUp)
	c.answered.Add(before.Answered)
	c.confirmed.Add(before.Confirmed)
}
