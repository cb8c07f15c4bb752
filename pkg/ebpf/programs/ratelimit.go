// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"fmt"
	"math"
	"time"
)

// RateLimit is a token bucket: it admits Burst packets at once, and one per Interval afterwards. The zero value is no limit.
type RateLimit struct {
	Interval time.Duration
	Burst    int
}

// Rate limits for handshake initiations that leave most of a core for data during a flood. An initiation costs the
// handshake workers 0.1 to 0.2 ms, and a peer sends at most one in five seconds (Rekey-Timeout). The limit of a source
// is enough for 250 peers behind one address that all lost their sessions, and admits the first 100 at once.
const (
	SourceInterval = 20 * time.Millisecond
	SourceBurst    = 100
	TotalInterval  = 500 * time.Microsecond
	TotalBurst     = 1000
)

// gcra returns the limit as the eBPF program holds it (bpf/include/ratelimit.h), in nanoseconds.
// It is the emission interval, and the tolerance by which the theoretical arrival time may be
// ahead of the clock.
func (r RateLimit) gcra() (interval, tolerance uint64, err error) {
	if r == (RateLimit{}) {
		return 0, 0, nil
	}
	if r.Interval <= 0 || r.Burst < 1 || int64(r.Burst) > math.MaxInt64/4/int64(r.Interval) {
		return 0, 0, fmt.Errorf("invalid rate limit: burst %d, one every %v", r.Burst, r.Interval)
	}
	return uint64(r.Interval), uint64(r.Burst-1) * uint64(r.Interval), nil
}
