// SPDX-License-Identifier: Apache-2.0

package session

import "github.com/ropewalk/ropewalk/pkg/chachapoly"

// chunk is how many messages go through the cipher at once, and are opened between two updates of the replay window: the
// most that UDP GRO coalesces (UDP_GRO_CNT_MAX, Linux net/ipv4/udp_offload.c).
const chunk = 64

// Scratch is one worker's working memory for sealing and opening, some 18 KiB. The zero Scratch is ready. One goroutine
// may use it at a time; between calls it holds no secret.
type Scratch struct {
	cipher   chachapoly.Scratch
	msgs     [chunk]chachapoly.Message
	index    [chunk]uint8  // which of the chunk's messages msgs[i] is
	counters [chunk]uint64 // of the authenticated messages of a chunk
	fresh    [chunk]bool
}
