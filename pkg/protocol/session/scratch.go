// SPDX-License-Identifier: Apache-2.0

package session

import "github.com/ropewalk/ropewalk/pkg/protocol/chachapoly"

// chunkLen is the number of messages that one cipher call processes, and that are opened between
// two updates of the replay window. It is the most that UDP GRO coalesces (UDP_GRO_CNT_MAX, Linux
// net/ipv4/udp_offload.c).
const chunkLen = 64

// MaxEach is the largest number of messages that DecryptEach takes.
const MaxEach = chunkLen

// Scratch is the buffer memory of one worker for sealing and opening, about 18 KiB. The zero Scratch is ready. One
// goroutine may use it at a time. Between calls it holds no secret.
type Scratch struct {
	cipher   chachapoly.Scratch
	msgs     [chunkLen]chachapoly.Message
	index    [chunkLen]uint8  // the index of msgs[i] within the chunk
	counters [chunkLen]uint64 // of the authenticated messages of a chunk
	fresh    [chunkLen]bool
}
