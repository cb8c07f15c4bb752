// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"sync/atomic"

	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
)

// counter is a counter with one writer at a time and any number of readers.
type counter struct{ n atomic.Uint64 }

func (c *counter) add(n int) {
	if n != 0 {
		c.n.Store(c.n.Load() + uint64(n))
	}
}

func (c *counter) load() uint64 { return c.n.Load() }

// addStats returns a + b, field by field.
func addStats(a, b xsk.Stats) xsk.Stats {
	return xsk.Stats{
		Received: a.Received + b.Received, Sent: a.Sent + b.Sent, Completed: a.Completed + b.Completed,
		Rejected: a.Rejected + b.Rejected, FrameOwnershipErrors: a.FrameOwnershipErrors + b.FrameOwnershipErrors, TxRefused: a.TxRefused + b.TxRefused,
		RxDropped: a.RxDropped + b.RxDropped, RxRingFull: a.RxRingFull + b.RxRingFull,
		RxInvalid: a.RxInvalid + b.RxInvalid, TxInvalid: a.TxInvalid + b.TxInvalid,
	}
}
