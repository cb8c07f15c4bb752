// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"math"
	"time"
)

// Budget is how many packets of a kind are let in: Burst at once, and after them one per Every. The zero Budget is no
// limit.
type Budget struct {
	Every time.Duration
	Burst int
}

// The budgets of handshake initiations by which a receiver keeps most of a core for data, whoever floods. One costs the
// handshake workers 0.1 to 0.2 ms, and a peer sends one in five seconds at most (Rekey-Timeout): a source's budget is
// enough for 250 peers behind one address that all lost their sessions, and starts 100 of them at once.
const (
	SourceEvery = 20 * time.Millisecond
	SourceBurst = 100
	TotalEvery  = 500 * time.Microsecond
	TotalBurst  = 1000
)

// words returns what the eBPF program knows of the budget: what a token costs, and how far ahead they may be taken.
func (b Budget) words() (interval, tolerance uint64, err error) {
	if b == (Budget{}) {
		return 0, 0, nil
	}
	if b.Every <= 0 || b.Burst < 1 || int64(b.Burst) > math.MaxInt64/4/int64(b.Every) {
		return 0, 0, fmt.Errorf("no such budget: %d at once, and one every %v", b.Burst, b.Every)
	}
	return uint64(b.Every), uint64(b.Burst-1) * uint64(b.Every), nil
}
