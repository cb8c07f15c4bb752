// SPDX-License-Identifier: Apache-2.0

package session

import (
	"math"
	"time"
)

// Limits of one session (WireGuard paper, §6.1, table 1).
const (
	// RekeyAfterMessages is the number of sent messages after which a new session is needed.
	RekeyAfterMessages uint64 = 1 << 60
	// RejectAfterMessages is the number of messages after which a session is neither sent on nor believed: counters
	// from here on are refused. The 2^13 below the end of the counter keep a window's arithmetic from wrapping.
	RejectAfterMessages uint64 = math.MaxUint64 - 1<<13
	// RejectAfterTime is the age in nanoseconds from which a session is used for neither sending nor receiving.
	RejectAfterTime = int64(180 * time.Second)
)
